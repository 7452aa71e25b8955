// Convolutions as matmuls of patches, and the transposition of samples. Images are channels last.
#include "vectors.cuh"

// Edge of the tiles in which matrices are transposed, and rows of threads of a block.
constexpr uint32_t EDGE = 32;
constexpr uint32_t THREAD_ROWS = 8;

// y[s][c][r] = x[s][r][c], plus added[s][c][r] unless `added` is null; it may be `y`. One block per tile: the tiles of a
// sample row by row, one sample after the other.
template <class T>
__device__ __forceinline__ void transpose(T* y, const T* x, const T* added, uint32_t rows, uint32_t columns) {
    __shared__ float tile[EDGE][EDGE + 1];
    const uint32_t across = (columns + EDGE - 1) / EDGE;
    const uint32_t tiles = across * ((rows + EDGE - 1) / EDGE);
    const uint64_t start = static_cast<uint64_t>(blockIdx.x / tiles) * rows * columns;
    const uint32_t row = blockIdx.x % tiles / across * EDGE;
    const uint32_t column = blockIdx.x % tiles % across * EDGE;
    for (uint32_t i = threadIdx.x / EDGE; i < EDGE; i += THREAD_ROWS) {
        const uint32_t r = row + i;
        const uint32_t c = column + threadIdx.x % EDGE;
        if (r < rows && c < columns) tile[i][threadIdx.x % EDGE] = to_float(x[start + static_cast<uint64_t>(r) * columns + c]);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x / EDGE; i < EDGE; i += THREAD_ROWS) {
        const uint32_t c = column + i;
        const uint32_t r = row + threadIdx.x % EDGE;
        if (r < rows && c < columns) {
            const uint64_t index = start + static_cast<uint64_t>(c) * rows + r;
            float value = tile[threadIdx.x % EDGE][i];
            if (added != nullptr) value += to_float(added[index]);
            y[index] = from_float<T>(value);
        }
    }
}

// The sizes of a convolution: of the image, of the output, and of the window. `all` channels of the image, `channels` of a
// group.
struct Sizes {
    uint32_t height, width, all, channels;
    uint32_t places_down, places_across;
    uint32_t kernel_height, kernel_width, stride, padding;
};

// A slice of patches [rows][kernel_height][kernel_width][channels]: one block per patch, `first` is that of the slice. `x`
// starts at the group's first channel.
template <class T>
__device__ __forceinline__ void gather_patches(T* patches, const T* x, Sizes sizes, uint32_t first) {
    const uint32_t place = first + blockIdx.x;
    const uint32_t across = place % sizes.places_across;
    const uint32_t down = place / sizes.places_across % sizes.places_down;
    const uint64_t sample = place / sizes.places_across / sizes.places_down;
    const uint32_t columns = sizes.kernel_height * sizes.kernel_width * sizes.channels;
    T* patch = patches + static_cast<uint64_t>(blockIdx.x) * columns;
    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
        const uint32_t cell = i / sizes.channels;
        // Below 0, they wrap to numbers beyond the image.
        const uint32_t row = down * sizes.stride + cell / sizes.kernel_width - sizes.padding;
        const uint32_t column = across * sizes.stride + cell % sizes.kernel_width - sizes.padding;
        const bool inside = row < sizes.height && column < sizes.width;
        const uint64_t pixel = (sample * sizes.height + row) * sizes.width + column;
        patch[i] = inside ? x[pixel * sizes.all + i % sizes.channels] : from_float<T>(0.0f);
    }
}

// The first place along an axis whose window contains the pixel.
__device__ __forceinline__ uint32_t first_place(uint32_t padded, uint32_t kernel, uint32_t stride) {
    return padded + 1 > kernel ? (padded + 1 - kernel + stride - 1) / stride : 0;
}

// Adds a slice of `rows` patches to the pixels: one block per pixel, from `first_pixel` on. `dx` starts at the group's first
// channel. Each pixel's terms are added in the order of their patches.
template <class T>
__device__ __forceinline__ void scatter_patches(T* dx, const float* patches, Sizes sizes, uint32_t first,
                                                uint32_t rows, uint32_t first_pixel) {
    const uint32_t pixel = first_pixel + blockIdx.x;
    const uint32_t column = pixel % sizes.width + sizes.padding;
    const uint32_t row = pixel / sizes.width % sizes.height + sizes.padding;
    const uint32_t sample = pixel / sizes.width / sizes.height;
    const uint32_t cells = sizes.kernel_height * sizes.kernel_width;
    for (uint32_t channel = threadIdx.x; channel < sizes.channels; channel += blockDim.x) {
        T* const sink = dx + static_cast<uint64_t>(pixel) * sizes.all + channel;
        float sum = to_float(*sink);
        const uint32_t end_down = min(row / sizes.stride + 1, sizes.places_down);
        const uint32_t end_across = min(column / sizes.stride + 1, sizes.places_across);
#pragma unroll 1
        for (uint32_t down = first_place(row, sizes.kernel_height, sizes.stride); down < end_down; ++down) {
#pragma unroll 1
            for (uint32_t across = first_place(column, sizes.kernel_width, sizes.stride); across < end_across; ++across) {
                // Places before the slice wrap to numbers beyond it.
                const uint32_t patch = (sample * sizes.places_down + down) * sizes.places_across + across - first;
                if (patch >= rows) continue;
                const uint32_t cell = (row - down * sizes.stride) * sizes.kernel_width + column - across * sizes.stride;
                sum += patches[(static_cast<uint64_t>(patch) * cells + cell) * sizes.channels + channel];
            }
        }
        *sink = from_float<T>(sum);
    }
}

// Copies rows of `columns` elements between matrices with other rows: one block per row.
template <class T>
__device__ __forceinline__ void copy_rows(T* to, const T* from, uint32_t to_stride, uint32_t from_stride,
                                          uint32_t columns) {
    const uint64_t row = blockIdx.x;
    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) to[row * to_stride + i] = from[row * from_stride + i];
}

// Stores f32 sums [features][cells][channels] as a gradient [features][channels][cells], or adds them to it.
template <class T>
__device__ __forceinline__ void store_weight_gradient(T* gradient, const float* sums, uint32_t channels,
                                                      uint32_t cells, uint32_t accumulate, uint64_t count) {
    const uint64_t index = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= count) return;
    const uint32_t columns = channels * cells;
    const uint32_t within = static_cast<uint32_t>(index % columns);
    float sum = sums[index - within + within % cells * channels + within / cells];
    if (accumulate) sum += to_float(gradient[index]);
    gradient[index] = from_float<T>(sum);
}

#define CONV2D(T, suffix)                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        transpose_##suffix(T* y, const T* __restrict__ x, const T* added, uint32_t rows, uint32_t columns) {         \
        transpose(y, x, added, rows, columns);                                                                       \
    }                                                                                                                \
    REGISTER(transpose_##suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256) gather_patches_##suffix(                                       \
        T* __restrict__ patches, const T* __restrict__ x, uint32_t height, uint32_t width, uint32_t all,             \
        uint32_t channels, uint32_t places_down, uint32_t places_across, uint32_t kernel_height,                     \
        uint32_t kernel_width, uint32_t stride, uint32_t padding, uint32_t first) {                                  \
        const Sizes sizes{height,        width,         all,          channels, places_down,                         \
                          places_across, kernel_height, kernel_width, stride,   padding};                            \
        gather_patches(patches, x, sizes, first);                                                                    \
    }                                                                                                                \
    REGISTER(gather_patches_##suffix)                                                                                \
    extern "C" __global__ void __launch_bounds__(256) scatter_patches_##suffix(                                      \
        T* __restrict__ dx, const float* __restrict__ patches, uint32_t height, uint32_t width, uint32_t all,        \
        uint32_t channels, uint32_t places_down, uint32_t places_across, uint32_t kernel_height,                     \
        uint32_t kernel_width, uint32_t stride, uint32_t padding, uint32_t first, uint32_t rows,                     \
        uint32_t first_pixel) {                                                                                      \
        const Sizes sizes{height,        width,         all,          channels, places_down,                         \
                          places_across, kernel_height, kernel_width, stride,   padding};                            \
        scatter_patches(dx, patches, sizes, first, rows, first_pixel);                                               \
    }                                                                                                                \
    REGISTER(scatter_patches_##suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        copy_rows_##suffix(T* __restrict__ to, const T* __restrict__ from, uint32_t to_stride, uint32_t from_stride, \
                           uint32_t columns) {                                                                       \
        copy_rows(to, from, to_stride, from_stride, columns);                                                        \
    }                                                                                                                \
    REGISTER(copy_rows_##suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                                \
        store_weight_gradient_##suffix(T* gradient, const float* __restrict__ sums, uint32_t channels,               \
                                       uint32_t cells, uint32_t accumulate, uint64_t count) {                        \
        store_weight_gradient(gradient, sums, channels, cells, accumulate, count);                                   \
    }                                                                                                                \
    REGISTER(store_weight_gradient_##suffix)

CONV2D(float, f32)
CONV2D(bf16, bf16)
CONV2D(f16, f16)
