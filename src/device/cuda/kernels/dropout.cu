// Dropout.
#include "chance.cuh"
#include "elementwise.cuh"

// y = dropped(x), or residual + dropped(x) if `residual` is not null, of [B, sample_rows, columns]. `y` may be either.
// Four lanes share 32 columns of a row: each makes the random numbers of one block; they exchange the mask bits, so
// that each lane processes eight consecutive columns with vectorized accesses.
template <class X, class Y>
__device__ __forceinline__ void dropout(Y* y, const X* x, const Y* residual, const Chance& chance, float factor,
                                        uint32_t rows, uint32_t sample_rows, uint32_t columns) {
    const uint32_t groups = (columns + 31) / 32, block = threadIdx.x % 4;
    const uint32_t item = blockIdx.x * (BLOCK / 4) + threadIdx.x / 4;
    const uint32_t row = item / groups, group = item % groups;
    uint32_t kept = 0;
    if (row < rows) {
        const uint4 numbers = chance.numbers(row / sample_rows, row % sample_rows, group * 4 + block);
#pragma unroll
        for (int word = 0; word < 4; ++word) kept |= chance.kept_of(word_of(numbers, word)) << (8 * word + 2 * block);
    }
    kept |= __shfl_xor_sync(~0u, kept, 1);
    kept |= __shfl_xor_sync(~0u, kept, 2);
    if (row >= rows) return;
    const uint64_t first = static_cast<uint64_t>(row) * columns + group * 32;
    const uint32_t left = columns - group * 32;
    if (columns % 8 == 0) {
        if (block * 8 >= left) return;
        const uint64_t start = first + block * 8;
        float values[8], others[8] = {};
        load_eight(values, x + start);
        if (residual != nullptr) load_eight(others, residual + start);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float value = kept >> (block * 8 + i) & 1 ? values[i] * factor : 0.0f;
            values[i] = residual == nullptr ? value : others[i] + value;
        }
        store_eight(y + start, values);
    } else {
        // Each lane takes every fourth column, so that neighbouring lanes access neighbouring elements (coalesced).
        for (uint32_t column = block; column < min(32u, left); column += 4) {
            const float value = kept >> column & 1 ? to_float(x[first + column]) * factor : 0.0f;
            y[first + column] = from_float<Y>(residual == nullptr ? value : to_float(residual[first + column]) + value);
        }
    }
}

#define DROPOUT(X, x_type, Y, y_type)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        dropout_##x_type##_##y_type(Y* y, const X* x, const Y* residual, const Chance chance, float factor,          \
                                    uint32_t rows, uint32_t sample_rows, uint32_t columns) {                         \
        dropout<X, Y>(y, x, residual, chance, factor, rows, sample_rows, columns);                                   \
    }                                                                                                                \
    REGISTER(dropout_##x_type##_##y_type)

DROPOUT(float, f32, float, f32)
DROPOUT(float, f32, bf16, bf16)
DROPOUT(float, f32, f16, f16)
DROPOUT(bf16, bf16, float, f32)
DROPOUT(bf16, bf16, bf16, bf16)
DROPOUT(bf16, bf16, f16, f16)
DROPOUT(f16, f16, float, f32)
DROPOUT(f16, f16, bf16, bf16)
DROPOUT(f16, f16, f16, f16)
