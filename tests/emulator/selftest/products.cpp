// Tests of the emulated cuBLASLt against sums in double precision: types, layouts, transposes, epilogues, and rejected
// problems.
#include <cmath>
#include <cstring>

#include "../device/sixteen_bit.h"
#include "gpu.h"

namespace {

float value(DataType type, const std::vector<char>& bytes, size_t i) {
    uint16_t half;
    float whole;
    memcpy(&half, &bytes[2 * i], 2);
    if (type == CUDA_R_16F) return half_value(half);
    if (type == CUDA_R_16BF) return __uint_as_float(static_cast<uint32_t>(half) << 16);
    memcpy(&whole, &bytes[4 * i], 4);
    return whole;
}

size_t element_bytes(DataType type) { return type == CUDA_R_32F ? 4 : 2; }

// A matrix on the device and on the host, filled with numbers between -1 and 1.
struct Matrix {
    Layout layout;
    std::vector<char> host;
    CUdeviceptr address;

    Matrix(Gpu& gpu, DataType type, int order, uint64_t rows, uint64_t columns, unsigned seed) {
        // Longer than necessary, and a multiple of 8, as some epilogues require.
        const uint64_t line = ((order == CUBLASLT_ORDER_COL ? rows : columns) / 8 + 1) * 8;
        const uint64_t lines = order == CUBLASLT_ORDER_COL ? columns : rows;
        layout = {type, order, rows, columns, static_cast<int64_t>(line), 1, 0};
        host.resize(line * lines * element_bytes(type));
        for (size_t i = 0; i < line * lines; i++) {
            seed = seed * 1664525 + 1013904223;
            const float number =
                static_cast<float>(static_cast<int>(seed >> 8)) / static_cast<float>(1 << 23) - 1;
            const uint16_t half = type == CUDA_R_16F ? half_bits(number) : bfloat_bits(number);
            if (type == CUDA_R_32F) {
                memcpy(&host[4 * i], &number, 4);
            } else {
                memcpy(&host[2 * i], &half, 2);
            }
        }
        address = gpu.allocate(host.size());
        REQUIRE(cuMemcpyHtoD_v2(address, host.data(), host.size()));
    }

    float at(uint64_t row, uint64_t column) const {
        const auto line = static_cast<uint64_t>(layout.leading_dimension);
        const bool by_column = layout.order == CUBLASLT_ORDER_COL;
        return value(layout.type, host, by_column ? column * line + row : row * line + column);
    }
    void* pointer() const { return reinterpret_cast<void*>(address); }
    void download() { REQUIRE(cuMemcpyDtoH_v2(host.data(), address, host.size())); }
};

struct Case {
    DataType in, out;
    bool transpose_a, transpose_b;
    int order;
    uint32_t epilogue;
    float alpha, beta;
    int algorithm;
};

constexpr uint64_t M = 37, N = 21, K = 19;

double gelu(double x) { return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

double gelu_slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

void multiplies(void* handle, const Case& test) {
    Gpu gpu;
    Matrix a(gpu, test.in, test.order, test.transpose_a ? K : M, test.transpose_a ? M : K, 1);
    Matrix b(gpu, test.in, test.order, test.transpose_b ? N : K, test.transpose_b ? K : N, 2);
    Matrix d(gpu, test.out, test.order, M, N, 3);
    Matrix bias(gpu, test.out, CUBLASLT_ORDER_COL, M, 1, 4);
    Matrix before(gpu, test.out, CUBLASLT_ORDER_COL, M, N, 5);
    const Matrix c = d, given_bias = bias, given_before = before;  // D overwrites C

    Description description{CUBLAS_COMPUTE_32F, CUDA_R_32F};
    description.transpose_a = test.transpose_a;
    description.transpose_b = test.transpose_b;
    description.epilogue = test.epilogue;
    const bool adds_bias = (test.epilogue & 4) != 0;
    const bool sums = test.epilogue == CUBLASLT_EPILOGUE_BGRADA || test.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    if (adds_bias || sums) description.bias = bias.pointer();
    description.auxiliary = before.pointer();
    description.auxiliary_leading_dimension = before.layout.leading_dimension;
    const Preference preference;
    HeuristicResult results[3];
    int count = 0;
    EXPECT_EQUAL(cublasLtMatmulAlgoGetHeuristic(handle, &description, &a.layout, &b.layout, &c.layout,
                                                &d.layout, &preference, 3, results, &count),
                 CUBLAS_STATUS_SUCCESS);
    EXPECT_EQUAL(count, static_cast<int>(ALGORITHMS));
    const Algorithm& algorithm = results[test.algorithm].algorithm;
    EXPECT_EQUAL(cublasLtMatmulAlgoCheck(handle, &description, &a.layout, &b.layout, &c.layout, &d.layout,
                                         &algorithm, &results[2]),
                 CUBLAS_STATUS_SUCCESS);
    EXPECT_EQUAL(results[2].workspace_bytes, size_t{0});
    EXPECT_EQUAL(cublasLtMatmul(handle, &description, &test.alpha, a.pointer(), &a.layout, b.pointer(),
                                &b.layout, &test.beta, c.pointer(), &c.layout, d.pointer(), &d.layout,
                                &algorithm, nullptr, 0, gpu.compute),
                 CUBLAS_STATUS_SUCCESS);
    REQUIRE(cuCtxSynchronize());
    d.download();
    bias.download();
    before.download();

    const double tolerance = test.out == CUDA_R_32F ? 1e-5 : test.out == CUDA_R_16F ? 2e-3 : 1e-2;
    const auto near = [&](double found, double wanted) {
        return fabs(found - wanted) <= tolerance * (1 + fabs(wanted));
    };
    const auto left = [&](uint64_t m, uint64_t k) { return test.transpose_a ? a.at(k, m) : a.at(m, k); };
    const auto right = [&](uint64_t k, uint64_t n) { return test.transpose_b ? b.at(n, k) : b.at(k, n); };
    for (uint64_t m = 0; m < M; m++) {
        for (uint64_t n = 0; n < N; n++) {
            double sum = 0;
            for (uint64_t k = 0; k < K; k++) sum += static_cast<double>(left(m, k)) * right(k, n);
            sum = test.alpha * sum + test.beta * c.at(m, n) + (adds_bias ? given_bias.at(m, 0) : 0);
            if (test.epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
                test.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                EXPECT(near(before.at(m, n), sum));
                sum = gelu(sum);
            } else if (test.epilogue == CUBLASLT_EPILOGUE_DGELU) {
                sum *= gelu_slope(given_before.at(m, n));
            }
            EXPECT(near(d.at(m, n), sum));
        }
    }
    for (uint64_t m = 0; m < M && test.epilogue == CUBLASLT_EPILOGUE_BGRADA; m++) {
        double sum = 0;
        for (uint64_t k = 0; k < K; k++) sum += left(m, k);
        EXPECT(near(bias.at(m, 0), sum));
    }
    for (uint64_t n = 0; n < N && test.epilogue == CUBLASLT_EPILOGUE_BGRADB; n++) {
        double sum = 0;
        for (uint64_t k = 0; k < K; k++) sum += right(k, n);
        EXPECT(near(bias.at(n, 0), sum));
    }
}

// As on an H100: 2^-8 + 2^-17 rounds to 2^-8 in bf16, and does so before an addition in memory. A pointer to a bias that
// the epilogue does not use is refused.
void behaves_as_a_card(void* handle) {
    Gpu gpu;
    const Layout one{CUDA_R_16BF, 0, 1, 1, 1}, row{CUDA_R_16BF, 0, 1, 2, 1}, column{CUDA_R_16BF, 0, 2, 1, 2};
    const CUdeviceptr memory = gpu.allocate(4096);
    // 2^-8 and 2^-17, times 1 each, plus -2^-8.
    const uint16_t left[] = {0x3b80, 0x3700}, right[] = {0x3f80, 0x3f80}, added = 0xbb80;
    const auto at = [&](size_t offset) { return reinterpret_cast<void*>(memory + offset); };
    const auto difference = [&](int pointer_mode) {
        REQUIRE(cuMemcpyHtoD_v2(memory, left, sizeof left));
        REQUIRE(cuMemcpyHtoD_v2(memory + 256, right, sizeof right));
        REQUIRE(cuMemcpyHtoD_v2(memory + 512, &added, sizeof added));
        Description description{CUBLAS_COMPUTE_32F, CUDA_R_32F};
        description.pointer_mode = pointer_mode;
        const float scale = 1;
        EXPECT_EQUAL(cublasLtMatmul(handle, &description, &scale, at(0), &row, at(256), &column, &scale, at(512),
                                    &one, at(512), &one, nullptr, nullptr, 0, gpu.compute),
                     CUBLAS_STATUS_SUCCESS);
        REQUIRE(cuCtxSynchronize());
        uint16_t found = 0;
        REQUIRE(cuMemcpyDtoH_v2(&found, memory + 512, sizeof found));
        return found;
    };
    EXPECT_EQUAL(difference(CUBLASLT_POINTER_MODE_HOST), 0);
    EXPECT_EQUAL(difference(CUBLASLT_POINTER_MODE_DEVICE), 0x3700);

    Description description{CUBLAS_COMPUTE_32F, CUDA_R_32F};
    description.epilogue = CUBLASLT_EPILOGUE_DGELU;
    description.auxiliary = at(1024);
    description.auxiliary_leading_dimension = 8;
    const Layout wide{CUDA_R_16BF, 0, 8, 8, 8};
    const auto slope = [&] {
        const float scale = 1, none = 0;
        return cublasLtMatmul(handle, &description, &scale, at(0), &wide, at(256), &wide, &none, at(512), &wide,
                              at(512), &wide, nullptr, nullptr, 0, gpu.compute);
    };
    if (slope() == CUBLAS_STATUS_SUCCESS) {
        description.bias = at(2048);
        EXPECT_EQUAL(slope(), CUBLAS_STATUS_INVALID_VALUE);
    }
}

void refuses(void* handle) {
    const Preference preference;
    HeuristicResult result;
    int count = 0;
    const auto status = [&](const Description& description, DataType in, DataType out, int64_t line = 32) {
        const Layout a{in, 0, 32, 16, line}, b{in, 0, 16, 8, 16}, d{out, 0, 32, 8, 32};
        return cublasLtMatmulAlgoGetHeuristic(handle, &description, &a, &b, &d, &d, &preference, 1, &result,
                                              &count);
    };
    Description description{CUBLAS_COMPUTE_32F, CUDA_R_32F};
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_16BF), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQUAL(status(description, CUDA_R_32F, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
    description.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    description.auxiliary_leading_dimension = 36;
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQUAL(count, 0);
    description.auxiliary_leading_dimension = 40;
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_16BF), CUBLAS_STATUS_SUCCESS);
    description.epilogue = CUBLASLT_EPILOGUE_DGELU | CUBLASLT_EPILOGUE_BGRADB;
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
    description.epilogue = CUBLASLT_EPILOGUE_BIAS;
    description.bias_type = CUDA_R_32F;
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_16BF), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_32F, 36), CUBLAS_STATUS_SUCCESS);
    description.epilogue = CUBLASLT_EPILOGUE_BGRADB;
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQUAL(status(description, CUDA_R_16BF, CUDA_R_32F, 36), CUBLAS_STATUS_NOT_SUPPORTED);

    // Algorithms of another shape, and misaligned operands.
    Gpu gpu;
    const Layout a{CUDA_R_32F, 0, 32, 16, 32}, b{CUDA_R_32F, 0, 16, 8, 16}, d{CUDA_R_32F, 0, 32, 8, 32};
    const Description plain{CUBLAS_COMPUTE_32F, CUDA_R_32F};
    const CUdeviceptr memory = gpu.allocate(4096);
    const auto multiply = [&](size_t shift, const Algorithm* algorithm) {
        void* place = reinterpret_cast<void*>(memory + shift);
        const float one = 1, zero = 0;
        return cublasLtMatmul(handle, &plain, &one, place, &a, place, &b, &zero, place, &d, place, &d,
                              algorithm, nullptr, 0, gpu.compute);
    };
    EXPECT_EQUAL(multiply(0, nullptr), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQUAL(multiply(8, nullptr), CUBLAS_STATUS_NOT_SUPPORTED);
    EXPECT_EQUAL(multiply(0, &result.algorithm), CUBLAS_STATUS_NOT_SUPPORTED);
    HeuristicResult checked;
    EXPECT_EQUAL(cublasLtMatmulAlgoCheck(handle, &plain, &a, &b, &d, &d, &result.algorithm, &checked),
                 CUBLAS_STATUS_NOT_SUPPORTED);
    // Each operand must have at least the alignment declared when the algorithm was recommended.
    for (int operand = 0; operand < 4; operand++) {
        Preference less;
        less.alignment[operand] = 4;
        HeuristicResult results[2];
        const auto recommend = [&](const Preference& by, HeuristicResult* into) {
            return cublasLtMatmulAlgoGetHeuristic(handle, &plain, &a, &b, &d, &d, &by, 1, into, &count);
        };
        EXPECT_EQUAL(recommend(preference, &results[0]), CUBLAS_STATUS_SUCCESS);
        EXPECT_EQUAL(recommend(less, &results[1]), CUBLAS_STATUS_SUCCESS);
        CUdeviceptr places[4] = {memory, memory, memory, memory};
        places[operand] += 4;
        const auto at = [&](int i) { return reinterpret_cast<void*>(places[i]); };
        const float one = 1, zero = 0;
        const auto by = [&](const Algorithm& algorithm) {
            return cublasLtMatmul(handle, &plain, &one, at(0), &a, at(1), &b, &zero, at(2), &d, at(3), &d,
                                  &algorithm, nullptr, 0, gpu.compute);
        };
        EXPECT_EQUAL(by(results[0].algorithm), CUBLAS_STATUS_NOT_SUPPORTED);
        EXPECT_EQUAL(by(results[1].algorithm), CUBLAS_STATUS_SUCCESS);
        REQUIRE(cuCtxSynchronize());
        less.alignment[operand] = 12;
        EXPECT_EQUAL(recommend(less, &results[1]), CUBLAS_STATUS_INVALID_VALUE);
    }
    const Algorithm nobody_s{};
    EXPECT_EQUAL(cublasLtMatmulAlgoCheck(handle, &plain, &a, &b, &d, &d, &nobody_s, &checked),
                 CUBLAS_STATUS_INVALID_VALUE);
    REQUIRE(cuCtxSynchronize());
}

// The reduced precision of tf32 operands is visible.
void rounds_to_tf32(void* handle) {
    Gpu gpu;
    const Layout one_by_one{CUDA_R_32F, 0, 1, 1, 1};
    const CUdeviceptr x = gpu.allocate(4), y = gpu.allocate(4);
    const float one = 1, zero = 0, fine = 1 + 0x1p-12f;
    for (int compute : {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32}) {
        const Description description{compute, CUDA_R_32F};
        REQUIRE(cuMemcpyHtoD_v2(x, &fine, 4));
        const auto at = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
        EXPECT_EQUAL(cublasLtMatmul(handle, &description, &one, at(x), &one_by_one, at(x), &one_by_one, &zero,
                                    at(y), &one_by_one, at(y), &one_by_one, nullptr, nullptr, 0, gpu.compute),
                     CUBLAS_STATUS_SUCCESS);
        REQUIRE(cuStreamSynchronize(gpu.compute));
        float product;
        REQUIRE(cuMemcpyDtoH_v2(&product, y, 4));
        EXPECT_EQUAL(product, compute == CUBLAS_COMPUTE_32F ? fine * fine : 1.0f);
    }
}

}  // namespace

int main() {
    void* handle;
    EXPECT_EQUAL(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    const DataType pairs[][2] = {{CUDA_R_32F, CUDA_R_32F},
                                 {CUDA_R_16BF, CUDA_R_16BF},
                                 {CUDA_R_16BF, CUDA_R_32F},
                                 {CUDA_R_16F, CUDA_R_16F},
                                 {CUDA_R_16F, CUDA_R_32F}};
    const uint32_t epilogues[] = {CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_GELU_AUX,
                                  CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                  CUBLASLT_EPILOGUE_BGRADA,        CUBLASLT_EPILOGUE_BGRADB};
    for (const auto& [in, out] : pairs) {
        for (int way = 0; way < 8; way++) {
            const bool a = way & 1, b = way & 2;
            const int n = way / 4;
            multiplies(handle, {in, out, a, b, CUBLASLT_ORDER_COL, CUBLASLT_EPILOGUE_DEFAULT, 1, 0, n});
            multiplies(handle, {in, out, a, b, CUBLASLT_ORDER_ROW, CUBLASLT_EPILOGUE_DEFAULT, 0.5f, 1, n});
        }
        for (uint32_t epilogue : epilogues) {
            for (int n : {0, 1}) {
                multiplies(handle, {in, out, false, true, CUBLASLT_ORDER_COL, epilogue, 1, 0.5f, n});
            }
        }
    }
    refuses(handle);
    behaves_as_a_card(handle);
    rounds_to_tf32(handle);
    EXPECT_EQUAL(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
    return finish("products");
}
