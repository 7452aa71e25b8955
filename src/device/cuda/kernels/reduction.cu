// Column sums of a matrix in two stages: partial sums over runs of rows, then their sum.
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int WARPS = 8;

// Sums `Width` columns per lane over the block's rows.
template <class T, int Width>
__device__ __forceinline__ void sum_columns(float* partials, const T* matrix, uint32_t rows, uint32_t columns,
                                            uint32_t rows_per_partial, uint32_t accumulate) {
    __shared__ float shared[WARPS][32 * Width];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t first = blockIdx.x * 32 * Width;
    const uint32_t column = first + lane * Width;
    const uint32_t begin = blockIdx.y * rows_per_partial;
    const uint32_t end = min(rows, begin + rows_per_partial);
    float sums[Width] = {};
    if (column < columns) {
#pragma unroll 4
        for (uint32_t row = begin + warp; row < end; row += WARPS) {
            const T* source = matrix + static_cast<uint64_t>(row) * columns + column;
            float values[Width];
            if constexpr (Width == 1) {
                values[0] = to_float(*source);
            } else {
                load_floats(values, source);
            }
#pragma unroll
            for (int i = 0; i < Width; ++i) sums[i] += values[i];
        }
    }
#pragma unroll
    for (int i = 0; i < Width; ++i) shared[warp][lane * Width + i] = sums[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 32 * Width && first + i < columns; i += 32 * WARPS) {
        float sum = 0.0f;
#pragma unroll
        for (int other = 0; other < WARPS; ++other) sum += shared[other][i];
        float* sink = partials + static_cast<uint64_t>(blockIdx.y) * columns + first + i;
        *sink = accumulate ? *sink + sum : sum;
    }
}

// partials[p, :] = sum of `rows_per_partial` rows of a matrix [rows, columns], from row p * rows_per_partial on. Grid:
// (blocks of 32 lanes times Width columns, partial sums). `wide`: a lane loads 16 bytes, and the size of a row is a
// multiple of that. With `accumulate`, sums are added to the previous contents.
#define COLUMN_SUMS(name, T, Width)                                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS)                                                         \
        name(float* __restrict__ partials, const T* __restrict__ matrix, uint32_t rows, uint32_t columns,            \
             uint32_t rows_per_partial, uint32_t accumulate) {                                                       \
        sum_columns<T, Width>(partials, matrix, rows, columns, rows_per_partial, accumulate);                        \
    }                                                                                                                \
    REGISTER(name)

COLUMN_SUMS(column_sums_f32, float, 1)
COLUMN_SUMS(column_sums_bf16, bf16, 1)
COLUMN_SUMS(column_sums_f16, f16, 1)
COLUMN_SUMS(column_sums_wide_f32, float, 4)
COLUMN_SUMS(column_sums_wide_bf16, bf16, 8)
COLUMN_SUMS(column_sums_wide_f16, f16, 8)

// Sum of `count` rows of partial sums [count, columns], stored in or added to `first`; columns from `split` on go to
// `second`. A block processes 32 columns, and its 32 warps share the rows.
template <class G>
__device__ __forceinline__ void add_up(G* first, G* second, const float* partials, uint32_t count, uint32_t columns,
                                       uint32_t split, uint32_t accumulate) {
    __shared__ float sums[32][32];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t column = blockIdx.x * 32 + lane;
    float sum = 0.0f;
    if (column < columns) {
#pragma unroll 8
        for (uint32_t i = warp; i < count; i += 32) sum += partials[static_cast<uint64_t>(i) * columns + column];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < columns) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; ++i) total += sums[i][lane];
        G* sink = column < split ? first + column : second + (column - split);
        *sink = from_float<G>(accumulate ? to_float(*sink) + total : total);
    }
}

#define SUM_PARTIALS(G, suffix)                                                                                      \
    extern "C" __global__ void __launch_bounds__(1024) sum_partials_##suffix(                                        \
        G* __restrict__ first, G* __restrict__ second, const float* __restrict__ partials, uint32_t count,           \
        uint32_t columns, uint32_t split, uint32_t accumulate) {                                                     \
        add_up(first, second, partials, count, columns, split, accumulate);                                          \
    }                                                                                                                \
    REGISTER(sum_partials_##suffix)

SUM_PARTIALS(float, f32)
SUM_PARTIALS(bf16, bf16)
SUM_PARTIALS(f16, f16)
