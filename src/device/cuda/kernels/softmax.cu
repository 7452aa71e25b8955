// Softmax of rows and its gradient. A warp has a row of few columns, a block one of many. Each thread reads the elements
// that it writes, so that results may overwrite their inputs.
#include "reductions.cuh"

constexpr uint32_t BLOCK = 256;

// The threads of a row.
template <bool IsBlock>
struct Row {
    static constexpr uint32_t STEP = IsBlock ? BLOCK : 32;

    uint64_t start;
    uint32_t columns;
    bool exists;

    __device__ __forceinline__ Row(uint32_t rows, uint32_t columns) : columns(columns) {
        const uint32_t row = IsBlock ? blockIdx.x : blockIdx.x * (BLOCK / 32) + threadIdx.x / 32;
        start = static_cast<uint64_t>(row) * columns;
        exists = row < rows;
    }

    __device__ __forceinline__ float sum(float value) const { return IsBlock ? block_sum(value) : warp_sum(value); }

    __device__ __forceinline__ float max(float value) const { return IsBlock ? block_max(value) : warp_max(value); }

    // Calls `work(column)` for the columns of this thread.
    template <class Work>
    __device__ __forceinline__ void for_each(const Work& work) const {
        for (uint32_t column = threadIdx.x % STEP; column < columns; column += STEP) work(column);
    }
};

template <bool IsBlock, class T>
__device__ __forceinline__ void forward(T* y, const T* x, uint32_t rows, uint32_t columns) {
    const Row<IsBlock> row(rows, columns);
    if (!row.exists) return;
    y += row.start;
    x += row.start;
    float largest = -INFINITY, total = 0.0f;
    row.for_each([&](uint32_t c) { largest = fmaxf(largest, to_float(x[c])); });
    largest = row.max(largest);
    row.for_each([&](uint32_t c) { total += expf(to_float(x[c]) - largest); });
    const float share = 1.0f / row.sum(total);
    row.for_each([&](uint32_t c) { y[c] = from_float<T>(expf(to_float(x[c]) - largest) * share); });
}

template <bool IsBlock, class T>
__device__ __forceinline__ void backward(T* dx, const T* dy, const T* y, uint32_t rows, uint32_t columns) {
    const Row<IsBlock> row(rows, columns);
    if (!row.exists) return;
    dx += row.start;
    dy += row.start;
    y += row.start;
    float along = 0.0f;
    row.for_each([&](uint32_t c) { along = fmaf(to_float(dy[c]), to_float(y[c]), along); });
    along = row.sum(along);
    row.for_each([&](uint32_t c) { dx[c] = from_float<T>(to_float(y[c]) * (to_float(dy[c]) - along)); });
}

#define SOFTMAX(T, suffix, IsBlock)                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        softmax_##suffix(T* y, const T* x, uint32_t rows, uint32_t columns) {                                        \
        forward<IsBlock>(y, x, rows, columns);                                                                       \
    }                                                                                                                \
    REGISTER(softmax_##suffix)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        softmax_backward_##suffix(T* dx, const T* dy, const T* __restrict__ y, uint32_t rows, uint32_t columns) {    \
        backward<IsBlock>(dx, dy, y, rows, columns);                                                                 \
    }                                                                                                                \
    REGISTER(softmax_backward_##suffix)

SOFTMAX(float, f32_warp, false)
SOFTMAX(bf16, bf16_warp, false)
SOFTMAX(f16, f16_warp, false)
SOFTMAX(float, f32_block, true)
SOFTMAX(bf16, bf16_block, true)
SOFTMAX(f16, f16_block, true)
