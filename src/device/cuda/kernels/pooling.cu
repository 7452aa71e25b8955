// Maximum and average pooling of images [B, H, W, C], and their gradients. A thread computes one element, so that a
// warp's loads are consecutive channels; sums over windows have a fixed order.
#include "compat.cuh"

constexpr uint32_t BLOCK = 256;

struct PoolWindow {
    uint32_t kernel_height;
    uint32_t kernel_width;
    uint32_t stride;
    uint32_t padding;
};

// PoolSizes of x [B, height, width, C] and of the windows' outputs [B, rows, columns, C].
struct PoolSizes {
    uint32_t height;
    uint32_t width;
    uint32_t rows;
    uint32_t columns;
    uint32_t channels;
};

// An element of an image [.., height, width, C]: row, column and channel, and the number of its image.
struct PoolPlace {
    uint32_t image;
    uint32_t row;
    uint32_t column;
    uint32_t channel;
};

__device__ __forceinline__ PoolPlace place_of(uint64_t element, uint32_t height, uint32_t width, uint32_t channels) {
    // Fewer than 2^31 pixels.
    const uint32_t pixel = static_cast<uint32_t>(element / channels);
    const uint32_t channel = static_cast<uint32_t>(element - static_cast<uint64_t>(pixel) * channels);
    return PoolPlace{pixel / width / height, pixel / width % height, pixel % width, channel};
}

__device__ __forceinline__ uint64_t this_element() {
    return static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
}

// Consecutive kernel cells along one axis, or outputs.
struct Cells {
    uint32_t first;
    uint32_t end;
};

// The kernel's cells that lie within an image of `size` pixels along one axis, for the output at `place`.
__device__ __forceinline__ Cells inside(uint32_t place, uint32_t size, uint32_t kernel, const PoolWindow& window) {
    const uint32_t start = place * window.stride;
    const uint32_t first = window.padding > start ? window.padding - start : 0;
    const uint32_t end = size + window.padding > start ? size + window.padding - start : 0;
    return Cells{first, min(end, kernel)};
}

// The outputs, of `places`, whose window contains a pixel.
__device__ __forceinline__ Cells covering(uint32_t pixel, uint32_t places, uint32_t kernel, const PoolWindow& window) {
    const uint32_t padded = pixel + window.padding;
    const uint32_t first = padded + 1 > kernel ? (padded - kernel) / window.stride + 1 : 0;
    return Cells{first, min(places, padded / window.stride + 1)};
}

template <class T>
__device__ __forceinline__ void max_pool(T* y, uint8_t* places, const T* x, uint64_t elements, PoolWindow window,
                                         PoolSizes sizes) {
    const uint64_t element = this_element();
    if (element >= elements) return;
    const PoolPlace place = place_of(element, sizes.rows, sizes.columns, sizes.channels);
    const Cells down = inside(place.row, sizes.height, window.kernel_height, window);
    const Cells across = inside(place.column, sizes.width, window.kernel_width, window);
    // The maximum of minus infinities is the first cell.
    float largest = -INFINITY;
    uint32_t cell = down.first * window.kernel_width + across.first;
    for (uint32_t i = down.first; i < down.end; ++i) {
        const uint32_t row = place.row * window.stride + i - window.padding;
        const uint64_t line = (static_cast<uint64_t>(place.image) * sizes.height + row) * sizes.width;
        for (uint32_t j = across.first; j < across.end; ++j) {
            const uint32_t column = place.column * window.stride + j - window.padding;
            const float value = to_float(x[(line + column) * sizes.channels + place.channel]);
            // A NaN is larger than every number.
            if (value > largest || value != value) {
                largest = value;
                cell = i * window.kernel_width + j;
            }
        }
    }
    y[element] = from_float<T>(largest);
    places[element] = static_cast<uint8_t>(cell);
}

// dx = the sum of dy over the windows whose maximum is the pixel, plus `before` unless it is null; it may be dx.
template <class T>
__device__ __forceinline__ void max_pool_backward(T* dx, const T* dy, const uint8_t* places, const T* before,
                                                  uint64_t elements, PoolWindow window, PoolSizes sizes) {
    const uint64_t element = this_element();
    if (element >= elements) return;
    const PoolPlace place = place_of(element, sizes.height, sizes.width, sizes.channels);
    const Cells down = covering(place.row, sizes.rows, window.kernel_height, window);
    const Cells across = covering(place.column, sizes.columns, window.kernel_width, window);
    float sum = before == nullptr ? 0.0f : to_float(before[element]);
    for (uint32_t i = down.first; i < down.end; ++i) {
        const uint32_t cell_row = place.row + window.padding - i * window.stride;
        const uint64_t line = (static_cast<uint64_t>(place.image) * sizes.rows + i) * sizes.columns;
        for (uint32_t j = across.first; j < across.end; ++j) {
            const uint32_t cell = cell_row * window.kernel_width + place.column + window.padding - j * window.stride;
            const uint64_t other = (line + j) * sizes.channels + place.channel;
            if (places[other] == cell) sum += to_float(dy[other]);
        }
    }
    dx[element] = from_float<T>(sum);
}

// Each row of the kernel has its own sum, because a sum of all cells of a large image would lose digits.
template <class T>
__device__ __forceinline__ void avg_pool(T* y, const T* x, uint64_t elements, PoolWindow window, PoolSizes sizes) {
    const uint64_t element = this_element();
    if (element >= elements) return;
    const PoolPlace place = place_of(element, sizes.rows, sizes.columns, sizes.channels);
    const Cells down = inside(place.row, sizes.height, window.kernel_height, window);
    const Cells across = inside(place.column, sizes.width, window.kernel_width, window);
    float total = 0.0f;
    for (uint32_t i = down.first; i < down.end; ++i) {
        const uint32_t row = place.row * window.stride + i - window.padding;
        const uint64_t line = (static_cast<uint64_t>(place.image) * sizes.height + row) * sizes.width;
        float sum = 0.0f;
        for (uint32_t j = across.first; j < across.end; ++j) {
            const uint32_t column = place.column * window.stride + j - window.padding;
            sum += to_float(x[(line + column) * sizes.channels + place.channel]);
        }
        total += sum;
    }
    y[element] = from_float<T>(total * (1.0f / (static_cast<float>(window.kernel_height) * window.kernel_width)));
}

// dx = the sum of dy over the windows that contain the pixel, over the kernel's cells, plus `before` unless it is null;
// it may be dx.
template <class T>
__device__ __forceinline__ void avg_pool_backward(T* dx, const T* dy, const T* before, uint64_t elements,
                                                  PoolWindow window, PoolSizes sizes) {
    const uint64_t element = this_element();
    if (element >= elements) return;
    const PoolPlace place = place_of(element, sizes.height, sizes.width, sizes.channels);
    const Cells down = covering(place.row, sizes.rows, window.kernel_height, window);
    const Cells across = covering(place.column, sizes.columns, window.kernel_width, window);
    float total = 0.0f;
    for (uint32_t i = down.first; i < down.end; ++i) {
        const uint64_t line = (static_cast<uint64_t>(place.image) * sizes.rows + i) * sizes.columns;
        float sum = 0.0f;
        for (uint32_t j = across.first; j < across.end; ++j) {
            sum += to_float(dy[(line + j) * sizes.channels + place.channel]);
        }
        total += sum;
    }
    const float mean = total * (1.0f / (static_cast<float>(window.kernel_height) * window.kernel_width));
    dx[element] = from_float<T>((before == nullptr ? 0.0f : to_float(before[element])) + mean);
}

#define POOLING(T, suffix)                                                                                           \
    extern "C" __global__ void __launch_bounds__(BLOCK) max_pool_##suffix(                                           \
        T* __restrict__ y, uint8_t* __restrict__ places, const T* __restrict__ x, uint64_t elements,                 \
        PoolWindow window, PoolSizes sizes) {                                                                        \
        max_pool(y, places, x, elements, window, sizes);                                                             \
    }                                                                                                                \
    REGISTER(max_pool_##suffix)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK) max_pool_backward_##suffix(                                  \
        T* dx, const T* __restrict__ dy, const uint8_t* __restrict__ places, const T* before, uint64_t elements,     \
        PoolWindow window, PoolSizes sizes) {                                                                        \
        max_pool_backward(dx, dy, places, before, elements, window, sizes);                                          \
    }                                                                                                                \
    REGISTER(max_pool_backward_##suffix)                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK) avg_pool_##suffix(                                           \
        T* __restrict__ y, const T* __restrict__ x, uint64_t elements, PoolWindow window, PoolSizes sizes) {         \
        avg_pool(y, x, elements, window, sizes);                                                                     \
    }                                                                                                                \
    REGISTER(avg_pool_##suffix)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK) avg_pool_backward_##suffix(                                  \
        T* dx, const T* __restrict__ dy, const T* before, uint64_t elements, PoolWindow window, PoolSizes sizes) {   \
        avg_pool_backward(dx, dy, before, elements, window, sizes);                                                  \
    }                                                                                                                \
    REGISTER(avg_pool_backward_##suffix)

POOLING(float, f32)
POOLING(bf16, bf16)
POOLING(f16, f16)
