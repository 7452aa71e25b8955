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

// A number of consecutive elements, as an argument of generic lambdas.
template <int Width>
struct Run {
    static constexpr int size = Width;
};

// Elements per thread of `each_run`.
constexpr int RUN_ELEMENTS = 8;

// Calls `work` with a run of elements and the index of its first: runs of 16 bytes of T, then single elements. Operands
// are aligned to 16 bytes. A block processes BLOCK * RUN_ELEMENTS elements.
template <class T, class Work>
__device__ __forceinline__ void each_run(uint64_t count, Work work) {
    constexpr int WIDTH = Vector<T>::size;
    const uint64_t whole = count / WIDTH * WIDTH;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * RUN_ELEMENTS + threadIdx.x * WIDTH;
#pragma unroll
    for (int i = 0; i < RUN_ELEMENTS; i += WIDTH) {
        if (first + i * BLOCK < whole) work(Run<WIDTH>{}, first + i * BLOCK);
    }
    const uint64_t single = whole + static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    for (uint64_t i = single; i < count; i += static_cast<uint64_t>(gridDim.x) * BLOCK) work(Run<1>{}, i);
}

// Columns of a row that a warp processes, and rows per block.
constexpr uint32_t WARP_COLUMNS = 256;
constexpr uint32_t BLOCK_ROWS = BLOCK / 32;

template <int Width, class Work>
__device__ __forceinline__ void each_run_of_tile(uint32_t rows, uint32_t columns, Work work) {
    const uint32_t end = min(columns, (blockIdx.x + 1) * WARP_COLUMNS);
    const uint32_t first = blockIdx.x * WARP_COLUMNS + threadIdx.x % 32 * Width;
    // The grid has fewer rows of tiles than a tall matrix.
    for (uint32_t row = blockIdx.y * BLOCK_ROWS + threadIdx.x / 32; row < rows; row += gridDim.y * BLOCK_ROWS) {
#pragma unroll 1
        for (uint32_t column = first; column < end; column += 32 * Width) work(Run<Width>{}, row, column);
    }
}

// Calls `work` with runs of elements of a matrix, and the row and column of the first: runs of `Width` if the operands
// are `aligned` and rows consist of whole runs, otherwise single elements. Grid: tiles of columns, tiles of rows.
template <int Width, class Work>
__device__ __forceinline__ void each_run_of_rows(uint32_t rows, uint32_t columns, bool aligned, Work work) {
    if (aligned && columns % Width == 0) {
        each_run_of_tile<Width>(rows, columns, work);
    } else {
        each_run_of_tile<1>(rows, columns, work);
    }
}
