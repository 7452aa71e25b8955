// Ranges of columns. One block per row.
#include "vectors.cuh"

constexpr int BLOCK = 256;

// Calls `work` with the first of `WIDTH` consecutive columns, for all columns of a row.
template <int WIDTH, class Work>
__device__ __forceinline__ void each_column(uint32_t columns, Work work) {
    for (uint32_t c = threadIdx.x * WIDTH; c < columns; c += BLOCK * WIDTH) work(c);
}

// y = x, y[r, first + c] += part[r, c]. `y` may be `x`.
template <class T>
__device__ __forceinline__ void add_columns(T* y, const T* x, const T* part, uint32_t width, uint32_t columns,
                                            uint32_t first) {
    constexpr int WIDTH = Vector<T>::size;
    y += static_cast<uint64_t>(blockIdx.x) * width;
    x += static_cast<uint64_t>(blockIdx.x) * width;
    part += static_cast<uint64_t>(blockIdx.x) * columns;
    if (y != x) {
        each_column<1>(width, [&](uint32_t c) {
            if (c < first || c >= first + columns) y[c] = x[c];
        });
    }
    y += first;
    x += first;
    if (columns % WIDTH == 0 && is_vector_aligned(y) && is_vector_aligned(x) && is_vector_aligned(part)) {
        each_column<WIDTH>(columns, [&](uint32_t c) {
            float sum[WIDTH];
            float added[WIDTH];
            load_floats(sum, x + c);
            load_floats(added, part + c);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) sum[i] += added[i];
            store_floats(y + c, sum);
        });
    } else {
        each_column<1>(columns, [&](uint32_t c) { y[c] = from_float<T>(to_float(x[c]) + to_float(part[c])); });
    }
}

// part[r, c] = x[r, first + c]
template <class T>
__device__ __forceinline__ void take_columns(T* part, const T* x, uint32_t width, uint32_t columns, uint32_t first) {
    constexpr int WIDTH = Vector<T>::size;
    x += static_cast<uint64_t>(blockIdx.x) * width + first;
    part += static_cast<uint64_t>(blockIdx.x) * columns;
    if (columns % WIDTH == 0 && is_vector_aligned(x) && is_vector_aligned(part)) {
        each_column<WIDTH>(columns, [&](uint32_t c) { store_vector(part + c, load_vector(x + c)); });
    } else {
        each_column<1>(columns, [&](uint32_t c) { part[c] = x[c]; });
    }
}

#define COLUMNS(T, suffix)                                                                                           \
    extern "C" __global__ void __launch_bounds__(BLOCK) add_columns_##suffix(                                        \
        T* y, const T* x, const T* __restrict__ part, uint32_t width, uint32_t columns, uint32_t first) {            \
        add_columns(y, x, part, width, columns, first);                                                              \
    }                                                                                                                \
    REGISTER(add_columns_##suffix)                                                                                   \
    extern "C" __global__ void __launch_bounds__(BLOCK) take_columns_##suffix(                                       \
        T* __restrict__ part, const T* __restrict__ x, uint32_t width, uint32_t columns, uint32_t first) {           \
        take_columns(part, x, width, columns, first);                                                                \
    }                                                                                                                \
    REGISTER(take_columns_##suffix)

COLUMNS(float, f32)
COLUMNS(bf16, bf16)
COLUMNS(f16, f16)
