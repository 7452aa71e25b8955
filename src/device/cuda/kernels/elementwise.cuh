// Loops over elements.
#pragma once
#include "vectors.cuh"

constexpr int BLOCK = 256;
// 16-byte vectors that a thread loads of each operand before it stores any: enough loads in flight to saturate memory
// bandwidth.
constexpr int VECTORS = 4;

// out[i] = function(a[i], b[i]). `out` may be `a` or `b`. A block processes BLOCK * VECTORS vectors. Operands that are
// rows of a tensor may be unaligned; they and the tail are processed element by element in a grid-stride loop.
template <class T, class Function>
__device__ __forceinline__ void map2(T* out, const T* a, const T* b, uint64_t count, Function function) {
    constexpr int WIDTH = Vector<T>::size;
    const bool aligned = is_vector_aligned(out) && is_vector_aligned(a) && is_vector_aligned(b);
    const uint64_t whole = aligned ? count / WIDTH : 0;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * VECTORS + threadIdx.x;
    Vector<T> left[VECTORS];
    Vector<T> right[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const uint64_t vector = first + v * BLOCK;
        if (vector < whole) {
            left[v] = load_vector(a + vector * WIDTH);
            right[v] = load_vector(b + vector * WIDTH);
        }
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const uint64_t vector = first + v * BLOCK;
        if (vector < whole) {
            float values[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) values[i] = function(left[v].get(i), right[v].get(i));
            store_floats(out + vector * WIDTH, values);
        }
    }
    const uint64_t single = whole * WIDTH + static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    for (uint64_t i = single; i < count; i += static_cast<uint64_t>(gridDim.x) * BLOCK) {
        out[i] = from_float<T>(function(to_float(a[i]), to_float(b[i])));
    }
}

// Elements per thread in kernels that are not worth vectorizing.
constexpr int SINGLES = 8;

// Calls `work` with the index of each element of the block.
template <class Work>
__device__ __forceinline__ void each(uint64_t count, Work work) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * SINGLES + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SINGLES; ++i) {
        if (first + i * BLOCK < count) work(first + i * BLOCK);
    }
}
