// The part of the cuBLASLt interface that the emulation implements, with the library's constants, and its descriptors.
#pragma once

#include <cstddef>
#include <cstdint>

struct Way;

using Status = int;
using DataType = int;

enum : Status {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
};

enum : DataType { UNSET = -1, CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };

enum : int { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };

enum : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 };

enum : int { CUBLASLT_ORDER_COL = 0, CUBLASLT_ORDER_ROW = 1 };

enum : int { CUBLASLT_POINTER_MODE_HOST = 0, CUBLASLT_POINTER_MODE_DEVICE = 1 };

enum : int {
    CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0,
    CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1,
    CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_TRANSC = 5,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE = 22,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
};

enum : int {
    CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
    CUBLASLT_MATRIX_LAYOUT_ORDER = 1,
    CUBLASLT_MATRIX_LAYOUT_ROWS = 2,
    CUBLASLT_MATRIX_LAYOUT_COLS = 3,
    CUBLASLT_MATRIX_LAYOUT_LD = 4,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
};

enum : int {
    CUBLASLT_MATMUL_PREF_SEARCH_MODE = 0,
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};

enum : uint32_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU = 32,
    CUBLASLT_EPILOGUE_GELU_BIAS = 36,
    CUBLASLT_EPILOGUE_GELU_AUX = 160,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164,
    CUBLASLT_EPILOGUE_DGELU = 192,
    CUBLASLT_EPILOGUE_BGRADA = 256,
    CUBLASLT_EPILOGUE_BGRADB = 512,
};

struct Layout {
    DataType type;
    int32_t order = CUBLASLT_ORDER_COL;
    uint64_t rows, columns;
    int64_t leading_dimension;
    int32_t batch_count = 1;
    int64_t batch_offset = 0;
};

struct Description {
    int32_t compute_type;
    DataType scale_type;
    int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
    int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, transpose_c = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
    void* auxiliary = nullptr;
    int64_t auxiliary_leading_dimension = 0;
    DataType bias_type = UNSET, auxiliary_type = UNSET;
    int32_t multiprocessors = 0;
};

struct Preference {
    uint32_t search_mode = 0;
    uint64_t most_workspace_bytes = 0;
    uint32_t reduction_schemes = ~0u;
    uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
    uint64_t data[8];
};

struct HeuristicResult {
    Algorithm algorithm;
    size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

// D = epilogue(alpha op(A) op(B) + beta C): all arguments of `cublasLtMatmul` but the addresses.
struct Problem {
    Description description;
    Layout a, b, c, d;

    uint64_t rows() const { return d.rows; }
    uint64_t columns() const { return d.columns; }
    uint64_t inner() const { return description.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
    DataType bias_type() const { return description.bias_type == UNSET ? d.type : description.bias_type; }
    DataType auxiliary_type() const {
        return description.auxiliary_type == UNSET ? d.type : description.auxiliary_type;
    }
    bool has_bias() const { return (description.epilogue & ~32u & ~128u) == CUBLASLT_EPILOGUE_BIAS; }
    bool has_auxiliary() const { return (description.epilogue & 128) != 0; }
    bool has_bias_gradient() const {
        return description.epilogue == CUBLASLT_EPILOGUE_BGRADA ||
               description.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    }
};

struct Addresses {
    const void *a, *b, *c;
    void* d;
    float alpha, beta;

    // With scales in host memory, cuBLASLt 13.1 on an H100 adds to D in memory: the matmul with its bias is rounded to D's
    // type first.
    bool adds_in_memory(const Problem& problem) const {
        return problem.description.pointer_mode == CUBLASLT_POINTER_MODE_HOST && c == d && beta == 1;
    }
};

// Whether the library has an algorithm for the problem: success, NOT_SUPPORTED, or INVALID_VALUE if the problem
// contradicts itself.
Status check(const Problem& problem);

// Every problem has two algorithms with different orders of summation, so that results depend on the algorithm, and on
// nothing else.
constexpr uint64_t ALGORITHMS = 2;

// Computes the problem, summing over `inner` in order: as a whole, or, with the second algorithm, in two halves.
void compute(const Problem& problem, const Addresses& addresses, uint64_t algorithm, const Way& way);

// Artificial run time in milliseconds, set by EMULATED_PRODUCTS (README.md).
int pretended_milliseconds(const Problem& problem, uint64_t algorithm);

// From the emulated driver: the failure that EMULATED_FAIL plans for this call of a function, or success.
extern "C" int emulated_failure(const char* function);

#define CUBLASLT_API extern "C" __attribute__((visibility("default")))
