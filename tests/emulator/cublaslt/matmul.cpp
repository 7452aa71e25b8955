// Supported matmuls, and their execution in stream order.
#include <cstring>
#include <functional>

#include "../ways.h"
#include "cublaslt.h"

struct Stream;

// From the emulated driver: enqueue work in stream order, and add artificial run time.
extern "C" int emulated_enqueue(Stream* stream, std::function<void()>* work);
extern "C" int emulated_pretend(Stream* stream, int milliseconds);
// From the emulated driver: the emulation mode of the calling thread.
extern "C" const Way* emulated_current_way();

namespace {

// Marks algorithms recommended by this library.
constexpr uint64_t MARK = 0x656d756c61746564;

bool is_floating(DataType type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

size_t element_bytes(DataType type) { return type == CUDA_R_32F ? 4 : 2; }

bool is_well_formed(const Layout& layout) {
    const uint64_t line = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
    return is_floating(layout.type) &&
           (layout.order == CUBLASLT_ORDER_COL || layout.order == CUBLASLT_ORDER_ROW) && layout.rows > 0 &&
           layout.columns > 0 && layout.leading_dimension >= static_cast<int64_t>(line);
}

bool fits_together(const Problem& problem) {
    const Description& description = problem.description;
    const bool a_as_is = description.transpose_a == CUBLAS_OP_N,
               b_as_is = description.transpose_b == CUBLAS_OP_N;
    const uint64_t a_rows = a_as_is ? problem.a.rows : problem.a.columns;
    const uint64_t b_rows = b_as_is ? problem.b.rows : problem.b.columns;
    const uint64_t b_columns = b_as_is ? problem.b.columns : problem.b.rows;
    return a_rows == problem.rows() && b_columns == problem.columns() && b_rows == problem.inner() &&
           problem.c.rows == problem.d.rows && problem.c.columns == problem.d.columns;
}

// The types that cuBLASLt's documentation lists for 32-bit arithmetic.
bool has_supported_types(const Problem& problem) {
    const DataType in = problem.a.type, out = problem.d.type;
    const int compute = problem.description.compute_type;
    const bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    return problem.b.type == in && problem.c.type == out && (out == in || out == CUDA_R_32F) &&
           problem.description.scale_type == CUDA_R_32F &&
           (compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
            (tf32 && in == CUDA_R_32F));
}

bool has_supported_epilogue(const Problem& problem) {
    const Description& description = problem.description;
    switch (description.epilogue) {
        case CUBLASLT_EPILOGUE_DEFAULT: return true;
        case CUBLASLT_EPILOGUE_BIAS:
        case CUBLASLT_EPILOGUE_GELU:
        case CUBLASLT_EPILOGUE_GELU_BIAS:
        case CUBLASLT_EPILOGUE_GELU_AUX:
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
        case CUBLASLT_EPILOGUE_DGELU:
        case CUBLASLT_EPILOGUE_BGRADA:
        case CUBLASLT_EPILOGUE_BGRADB: break;
        default: return false;
    }
    if (problem.d.order != CUBLASLT_ORDER_COL) return false;
    if ((problem.has_bias() || problem.has_bias_gradient()) && problem.bias_type() != problem.d.type)
        return false;
    // The documentation does not list where bias gradients are supported: callers must have a fallback.
    if (problem.has_bias_gradient()) {
        for (const Layout* layout : {&problem.a, &problem.b, &problem.d}) {
            if (layout->leading_dimension * element_bytes(layout->type) % 16 != 0) return false;
        }
    }
    if (problem.has_auxiliary()) {
        if (emulated_current_way()->gelu == Way::REFUSED) return false;
        const int64_t line = description.auxiliary_leading_dimension;
        if (line % 8 != 0 || line < static_cast<int64_t>(problem.rows())) return false;
        if (problem.auxiliary_type() != problem.d.type) return false;
    }
    return true;
}

bool is_aligned(const void* address, size_t bytes) {
    return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// An algorithm includes the alignment of its operands: 16 bits each.
uint64_t packed(const Preference& preference) {
    uint64_t bits = 0;
    for (int i = 0; i < 4; i++) bits |= static_cast<uint64_t>(preference.alignment[i]) << 16 * i;
    return bits;
}

bool is_well_formed(const Preference& preference) {
    for (uint32_t bytes : preference.alignment) {
        if (bytes == 0 || bytes > 256 || (bytes & (bytes - 1)) != 0) return false;
    }
    return true;
}

bool are_aligned(const Problem& problem, const Addresses& addresses, uint64_t alignments) {
    for (const void* address :
         {addresses.a, addresses.b, addresses.c, static_cast<const void*>(addresses.d)}) {
        if (!is_aligned(address, alignments & 0xffff)) return false;
        alignments >>= 16;
    }
    const Description& description = problem.description;
    if (problem.has_auxiliary() && !is_aligned(description.auxiliary, 16)) return false;
    const bool takes_bias = problem.has_bias() || problem.has_bias_gradient();
    return !takes_bias || is_aligned(description.bias, element_bytes(problem.bias_type()));
}

// Digest of everything that determines an algorithm: an algorithm is invalid for any other problem.
uint64_t digest(const Problem& problem) {
    uint64_t hash = 14695981039346656037u;
    auto add = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
    const Description& description = problem.description;
    for (int value :
         {description.compute_type, description.transpose_a, description.transpose_b,
          static_cast<int>(description.epilogue), problem.bias_type(), problem.auxiliary_type()}) {
        add(static_cast<uint64_t>(value));
    }
    for (const Layout* layout : {&problem.a, &problem.b, &problem.c, &problem.d}) {
        add(static_cast<uint64_t>(layout->type));
        add(static_cast<uint64_t>(layout->order));
        add(layout->rows);
        add(layout->columns);
        add(static_cast<uint64_t>(layout->leading_dimension));
    }
    return hash;
}

// Whether the library recommended this algorithm for this problem.
Status check(const Problem& problem, const Algorithm& algorithm) {
    if (algorithm.data[0] != MARK || algorithm.data[2] >= ALGORITHMS) return CUBLAS_STATUS_INVALID_VALUE;
    return algorithm.data[1] == digest(problem) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace

Status check(const Problem& problem) {
    for (const Layout* layout : {&problem.a, &problem.b, &problem.c, &problem.d}) {
        if (!is_well_formed(*layout)) return CUBLAS_STATUS_INVALID_VALUE;
        if (layout->batch_count != 1) return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (!fits_together(problem)) return CUBLAS_STATUS_INVALID_VALUE;
    const Description& description = problem.description;
    const bool plain = (description.pointer_mode == CUBLASLT_POINTER_MODE_HOST ||
                        description.pointer_mode == CUBLASLT_POINTER_MODE_DEVICE) &&
                       description.transpose_c == CUBLAS_OP_N && problem.c.order == problem.d.order;
    if (!plain || !has_supported_types(problem) || !has_supported_epilogue(problem)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtMatmulAlgoGetHeuristic(void* handle, const Description* description,
                                                   const Layout* a, const Layout* b, const Layout* c,
                                                   const Layout* d, const Preference* preference,
                                                   int requested, HeuristicResult* results, int* count) {
    *count = 0;
    if (const Status planned = emulated_failure("cublasLtMatmulAlgoGetHeuristic")) return planned;
    if (!handle || !description || !a || !b || !c || !d || !preference || requested < 1) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!is_well_formed(*preference)) return CUBLAS_STATUS_INVALID_VALUE;
    const Problem problem{*description, *a, *b, *c, *d};
    const Status status = check(problem);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    for (; *count < static_cast<int>(ALGORITHMS) && *count < requested; ++*count) {
        HeuristicResult& result = results[*count] = HeuristicResult{};
        result.algorithm.data[0] = MARK;
        result.algorithm.data[1] = digest(problem);
        result.algorithm.data[2] = static_cast<uint64_t>(*count);
        result.algorithm.data[3] = packed(*preference);
        result.state = emulated_failure("cublasLtMatmulAlgoGetHeuristic.state");
        result.waves = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

// Success if the library recommended the algorithm for this exact problem; other results are left unset.
CUBLASLT_API Status cublasLtMatmulAlgoCheck(void* handle, const Description* description, const Layout* a,
                                            const Layout* b, const Layout* c, const Layout* d,
                                            const Algorithm* algorithm, HeuristicResult* result) {
    if (!handle || !description || !a || !b || !c || !d || !algorithm || !result) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Problem problem{*description, *a, *b, *c, *d};
    Status status = check(problem);
    if (status == CUBLAS_STATUS_SUCCESS) status = check(problem, *algorithm);
    if (status == CUBLAS_STATUS_SUCCESS) *result = HeuristicResult{*algorithm, 0, status, 1, {}};
    return status;
}

// The only attribute of an algorithm is its id, its index in the list of recommendations.
CUBLASLT_API Status cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value,
                                                         size_t bytes, size_t* written) {
    constexpr int ID = 0;
    if (!algorithm || !value || algorithm->data[0] != MARK || bytes < sizeof(uint32_t)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const uint32_t number = attribute == ID ? static_cast<uint32_t>(algorithm->data[2]) : 0;
    memcpy(value, &number, sizeof number);
    if (written) *written = sizeof number;
    return CUBLAS_STATUS_SUCCESS;
}

CUBLASLT_API Status cublasLtMatmul(void* handle, const Description* description, const float* alpha,
                                   const void* a, const Layout* a_layout, const void* b,
                                   const Layout* b_layout, const float* beta, const void* c,
                                   const Layout* c_layout, void* d, const Layout* d_layout,
                                   const Algorithm* algorithm, void*, size_t, Stream* stream) {
    if (const Status planned = emulated_failure("cublasLtMatmul")) return planned;
    if (!handle || !description || !alpha || !beta || !a_layout || !b_layout || !c_layout || !d_layout) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Problem problem{*description, *a_layout, *b_layout, *c_layout, *d_layout};
    const Status status = check(problem);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const Addresses addresses{a, b, c, d, *alpha, *beta};
    const bool takes_bias = problem.has_bias() || problem.has_bias_gradient();
    if (!a || !b || !d || (!c && *beta != 0) || (takes_bias && !description->bias) ||
        (problem.has_auxiliary() && !description->auxiliary) ||
        // As on an H100.
        (problem.has_auxiliary() && !takes_bias && description->bias)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Status usable = algorithm == nullptr ? CUBLAS_STATUS_SUCCESS : check(problem, *algorithm);
    if (usable != CUBLAS_STATUS_SUCCESS) return usable;
    const uint64_t alignments = algorithm == nullptr ? packed(Preference{}) : algorithm->data[3];
    if (!are_aligned(problem, addresses, alignments)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint64_t number = algorithm == nullptr ? 0 : algorithm->data[2];
    std::function<void()> work = [problem, addresses, number, stream, way = *emulated_current_way()] {
        compute(problem, addresses, number, way);
        emulated_pretend(stream, pretended_milliseconds(problem, number));
    };
    return emulated_enqueue(stream, &work) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
