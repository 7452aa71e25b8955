// The arithmetic: products summed in f32, in order or in two halves, and the epilogues.
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "../arithmetic.h"
#include "../device/sixteen_bit.h"
#include "../ways.h"
#include "cublaslt.h"

// From the emulated driver: calls `work(piece)` for every piece, distributed over OS threads.
extern "C" void emulated_parallel(size_t pieces, const std::function<void(size_t)>* work);

namespace {

float load(const void* values, DataType type, size_t i) {
    switch (type) {
        case CUDA_R_16F: return half_value(static_cast<const uint16_t*>(values)[i]);
        case CUDA_R_16BF:
            return __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t*>(values)[i]) << 16);
        default: return static_cast<const float*>(values)[i];
    }
}

void store(void* values, DataType type, size_t i, float value) {
    switch (type) {
        case CUDA_R_16F: static_cast<uint16_t*>(values)[i] = half_bits(value); break;
        case CUDA_R_16BF: static_cast<uint16_t*>(values)[i] = bfloat_bits(value); break;
        default: static_cast<float*>(values)[i] = value;
    }
}

float rounded(float value, DataType type) {
    uint32_t bits;
    store(&bits, type, 0, value);
    return load(&bits, type, 0);
}

// Rounds to the 10 fraction bits of tf32, to nearest even.
float round_to_tf32(float value) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;
    return __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

size_t offset(const Layout& layout, size_t row, size_t column) {
    const auto line = static_cast<size_t>(layout.leading_dimension);
    return layout.order == CUBLASLT_ORDER_COL ? column * line + row : row * line + column;
}

// The elements of op(matrix), or of its transpose, as f32 in row-major order, with rows of `line` elements.
std::vector<float> unpack(const void* values, const Layout& layout, bool transposed, bool tf32, size_t line) {
    const size_t rows = transposed ? layout.columns : layout.rows,
                 columns = transposed ? layout.rows : layout.columns;
    std::vector<float> unpacked(rows * line);
    for (size_t row = 0; row < rows; row++) {
        for (size_t column = 0; column < columns; column++) {
            const size_t at = transposed ? offset(layout, column, row) : offset(layout, row, column);
            const float value = load(values, layout.type, at);
            unpacked[row * line + column] = tf32 ? round_to_tf32(value) : value;
        }
    }
    return unpacked;
}

constexpr float SQRT_2_OVER_PI = 0.7978845608028654f, CUBIC = 0.044715f;

float gelu(float x) { return 0.5f * x * (1 + std::tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x))); }

float gelu_slope(float x) {
    const float t = std::tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

void finish_element(const Problem& problem, const Addresses& addresses, const Way& way, size_t row,
                    size_t column, float sum) {
    const Description& description = problem.description;
    float value = addresses.alpha * sum;
    const float bias = problem.has_bias() ? load(description.bias, problem.bias_type(), row) : 0;
    const float added =
        addresses.beta == 0 ? 0 : addresses.beta * load(addresses.c, problem.c.type, offset(problem.c, row, column));
    if (addresses.adds_in_memory(problem)) {
        value = rounded(value + bias, problem.d.type) + added;
    } else {
        value = value + added + bias;
    }
    const size_t at = column * static_cast<size_t>(description.auxiliary_leading_dimension) + row;
    switch (description.epilogue) {
        case CUBLASLT_EPILOGUE_GELU_AUX:
        case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
            store(description.auxiliary, problem.auxiliary_type(), at, value);
            if (way.gelu == Way::ROUNDED)
                value = load(description.auxiliary, problem.auxiliary_type(), at);
            value = gelu(value);
            break;
        case CUBLASLT_EPILOGUE_GELU:
        case CUBLASLT_EPILOGUE_GELU_BIAS: value = gelu(value); break;
        case CUBLASLT_EPILOGUE_DGELU:
            value *= gelu_slope(load(description.auxiliary, problem.auxiliary_type(), at));
            break;
        default: break;
    }
    store(addresses.d, problem.d.type, offset(problem.d, row, column), value);
}

// Sums over `inner` of the rows of op(A), or of the columns of op(B).
void store_bias_gradient(const Problem& problem, const std::vector<float>& left,
                         size_t left_line, const std::vector<float>& right) {
    const size_t rows = problem.rows(), inner = problem.inner();
    const bool of_a = problem.description.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (size_t i = 0; i < (of_a ? rows : problem.columns()); i++) {
        double sum = 0;
        for (size_t k = 0; k < inner; k++) sum += of_a ? left[k * left_line + i] : right[i * inner + k];
        store(problem.description.bias, problem.bias_type(), i, static_cast<float>(sum));
    }
}

}  // namespace

void compute(const Problem& problem, const Addresses& addresses, uint64_t algorithm, const Way& way) {
    const Description& description = problem.description;
    const bool tf32 = description.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
    const bool truncates = way.truncates && (tf32 || problem.a.type != CUDA_R_32F);
    const size_t rows = problem.rows(), columns = problem.columns(), inner = problem.inner();
    // op(A) transposed, [inner, rows] in rows of whole tiles, and op(B) transposed, [columns, inner].
    const size_t line = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    const auto left = unpack(addresses.a, problem.a, description.transpose_a == CUBLAS_OP_N, tf32, line);
    const auto right = unpack(addresses.b, problem.b, description.transpose_b == CUBLAS_OP_N, tf32, inner);

    // Start of the second half; with the first algorithm, the end.
    const size_t middle = algorithm == 1 ? inner / 2 : inner;

    const std::function<void(size_t)> compute_columns = [&](size_t piece) {
        const size_t first_column = piece * TILE_COLUMNS,
                     tile_columns = std::min(TILE_COLUMNS, columns - first_column);
        const float* right_tile = &right[first_column * inner];
        for (size_t first_row = 0; first_row < rows; first_row += TILE_ROWS) {
            const size_t tile_rows = std::min(TILE_ROWS, rows - first_row);
            float sums[TILE_COLUMNS][TILE_ROWS], more[TILE_COLUMNS][TILE_ROWS] = {};
            const auto multiply = [&](size_t begin, size_t end, float (&into)[TILE_COLUMNS][TILE_ROWS]) {
                multiply_tile(&left[begin * line + first_row], line, right_tile + begin, inner, end - begin,
                              tile_columns, truncates, into);
            };
            multiply(0, middle, sums);
            if (middle < inner) multiply(middle, inner, more);
            for (size_t column = 0; column < tile_columns; column++) {
                for (size_t row = 0; row < tile_rows; row++) {
                    const float sum = middle < inner ? sums[column][row] + more[column][row] : sums[column][row];
                    finish_element(problem, addresses, way, first_row + row, first_column + column, sum);
                }
            }
        }
    };
    emulated_parallel((columns + TILE_COLUMNS - 1) / TILE_COLUMNS, &compute_columns);

    if (problem.has_bias_gradient()) store_bias_gradient(problem, left, line, right);
}
