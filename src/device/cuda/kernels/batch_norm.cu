// Batch normalization: each of C channels over all rows, and its gradient.
#include "channel_sums.cuh"

// Rows of a warp in elementwise kernels.
constexpr uint32_t WARP_ROWS = 16;

// The sum over the 32 warps of a block of each lane's value, in every warp.
__device__ __forceinline__ double sum_of_warps(double value) {
    __shared__ double values[32][32];
    const uint32_t lane = threadIdx.x % 32;
    values[threadIdx.x / 32][lane] = value;
    __syncthreads();
    double sum = 0.0;
    for (uint32_t warp = 0; warp < 32; ++warp) sum += values[warp][lane];
    // The next call must not overwrite the values before all threads have read them.
    __syncthreads();
    return sum;
}

// Statistics of all rows from partial results; factor and shift of each channel: y = (x - mean) * factor + shift, where
// the shift contains what rounding the mean to f32 leaves; and the next running statistics, unless they are null. A
// block processes 32 channels, and its 32 warps share the partial results. At two blocks per multiprocessor, it would
// spill registers on sm_90.
extern "C" __global__ void __launch_bounds__(1024, 1)
    batch_norm_statistics(float* __restrict__ mean, float* __restrict__ rstd, float* __restrict__ factor,
                          float* __restrict__ shift, float* running_mean, float* running_variance,
                          const double* __restrict__ partials, const float* __restrict__ weight,
                          const float* __restrict__ bias, uint32_t rows, uint32_t channels, uint32_t rows_per_partial,
                          float epsilon, float momentum) {
    const uint32_t channel = blockIdx.x * 32 + threadIdx.x % 32;
    const uint32_t count = (rows + rows_per_partial - 1) / rows_per_partial;
    // Threads without a channel take part in the sums.
    const uint32_t end = channel < channels ? count : 0;
    auto rows_of = [=](uint32_t i) {
        return static_cast<double>(min(rows_per_partial, rows - i * rows_per_partial));
    };
    double sum = 0.0;
    for (uint32_t i = threadIdx.x / 32; i < end; i += 32) {
        sum += rows_of(i) * partials[static_cast<uint64_t>(i) * 2 * channels + channel];
    }
    const double centre = sum_of_warps(sum) / rows;
    double squares = 0.0;
    for (uint32_t i = threadIdx.x / 32; i < end; i += 32) {
        const double* partial = partials + static_cast<uint64_t>(i) * 2 * channels + channel;
        const double difference = partial[0] - centre;
        squares += partial[channels] + rows_of(i) * difference * difference;
    }
    squares = sum_of_warps(squares);
    if (threadIdx.x < 32 && channel < channels) {
        const double scale = 1.0 / sqrt(squares / rows + epsilon);
        const double slope = scale * weight[channel];
        mean[channel] = static_cast<float>(centre);
        rstd[channel] = static_cast<float>(scale);
        factor[channel] = static_cast<float>(slope);
        shift[channel] = static_cast<float>(bias[channel] - (centre - static_cast<float>(centre)) * slope);
        if (running_mean != nullptr) {
            const double unbiased = squares / (rows > 1 ? rows - 1 : 1);
            const double share = momentum;
            running_mean[channel] = static_cast<float>((1.0 - share) * running_mean[channel] + share * centre);
            running_variance[channel] =
                static_cast<float>((1.0 - share) * running_variance[channel] + share * unbiased);
        }
    }
}

// Factor and shift of each channel from running statistics.
extern "C" __global__ void __launch_bounds__(BLOCK)
    batch_norm_running(float* __restrict__ factor, float* __restrict__ shift, const float* __restrict__ weight,
                       const float* __restrict__ bias, const float* __restrict__ variance, uint32_t channels,
                       float epsilon) {
    const uint32_t channel = blockIdx.x * BLOCK + threadIdx.x;
    if (channel < channels) {
        factor[channel] = static_cast<float>(weight[channel] / sqrt(static_cast<double>(variance[channel]) + epsilon));
        shift[channel] = bias[channel];
    }
}
REGISTER(batch_norm_statistics)
REGISTER(batch_norm_running)

// Calls `work(element, ...)` for the rows of a warp. Grid: (blocks of WARPS * WARP_ROWS rows, blocks of 32 lanes times
// Width channels).
template <int Width, class Work>
__device__ __forceinline__ void for_each_row(uint32_t rows, uint32_t channels, uint32_t channel, const Work& work) {
    const uint32_t first = (blockIdx.x * WARPS + threadIdx.x / 32) * WARP_ROWS;
    for (uint32_t row = first; row < min(rows, first + WARP_ROWS); ++row) {
        work(static_cast<uint64_t>(row) * channels + channel);
    }
}

template <int Width>
__device__ __forceinline__ uint32_t first_channel() {
    return (blockIdx.y * 32 + threadIdx.x % 32) * Width;
}

template <class T, int Width>
__device__ __forceinline__ void normalise(T* y, const T* x, const float* mean, const float* factor, const float* shift,
                                          uint32_t rows, uint32_t channels) {
    const uint32_t channel = first_channel<Width>();
    if (channel >= channels) return;
    float means[Width], factors[Width], shifts[Width];
    load_values(means, mean + channel);
    load_values(factors, factor + channel);
    load_values(shifts, shift + channel);
    for_each_row<Width>(rows, channels, channel, [&](uint64_t element) {
        float values[Width];
        load_values(values, x + element);
#pragma unroll
        for (int i = 0; i < Width; ++i) values[i] = (values[i] - means[i]) * factors[i] + shifts[i];
        store_values(y + element, values);
    });
}

// dx = rstd * weight * (dy - mean of dy - normalized x * mean of dy times normalized x), plus `before` unless it is
// null. `sums` are those of dy times normalized x, then those of dy. dx may be `before`, or dy.
template <class T, int Width>
__device__ __forceinline__ void differentiate(T* dx, const T* dy, const T* x, const float* weight, const float* mean,
                                              const float* rstd, const float* sums, const T* before, uint32_t rows,
                                              uint32_t channels) {
    const uint32_t channel = first_channel<Width>();
    if (channel >= channels) return;
    float means[Width], scales[Width], factors[Width], along[Width], through[Width];
    load_values(means, mean + channel);
    load_values(scales, rstd + channel);
    load_values(factors, weight + channel);
    load_values(along, sums + channel);
    load_values(through, sums + channels + channel);
#pragma unroll
    for (int i = 0; i < Width; ++i) {
        factors[i] *= scales[i];
        along[i] = factors[i] * (along[i] / rows);
        through[i] = factors[i] * (through[i] / rows);
    }
    for_each_row<Width>(rows, channels, channel, [&](uint64_t element) {
        float values[Width], slopes[Width];
        load_values(values, x + element);
        load_values(slopes, dy + element);
        float others[Width] = {};
        if (before != nullptr) load_values(others, before + element);
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            const float normal = (values[i] - means[i]) * scales[i];
            slopes[i] = others[i] + (factors[i] * slopes[i] - through[i] - along[i] * normal);
        }
        store_values(dx + element, slopes);
    });
}

// At eight blocks per multiprocessor, the first kernel would spill registers on sm_90.
#define BATCH_NORM_WIDTH(T, suffix, Width)                                                                           \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) batch_norm_##suffix##_##Width(                            \
        T* __restrict__ y, const T* __restrict__ x, const float* __restrict__ mean,                                  \
        const float* __restrict__ factor, const float* __restrict__ shift, uint32_t rows, uint32_t channels) {       \
        normalise<T, Width>(y, x, mean, factor, shift, rows, channels);                                              \
    }                                                                                                                \
    REGISTER(batch_norm_##suffix##_##Width)                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK) batch_norm_backward_##suffix##_##Width(                      \
        T* dx, const T* dy, const T* __restrict__ x, const float* __restrict__ weight,                               \
        const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ sums,              \
        const T* before, uint32_t rows, uint32_t channels) {                                                         \
        differentiate<T, Width>(dx, dy, x, weight, mean, rstd, sums, before, rows, channels);                        \
    }                                                                                                                \
    REGISTER(batch_norm_backward_##suffix##_##Width)

#define BATCH_NORM(T, suffix)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK) batch_norm_moments_##suffix(                                 \
        double* __restrict__ partials, const T* __restrict__ x, uint32_t rows, uint32_t channels,                    \
        uint32_t rows_per_partial) {                                                                                 \
        channel_moments(partials, x, rows, channels, rows_per_partial);                                              \
    }                                                                                                                \
    REGISTER(batch_norm_moments_##suffix)                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK) batch_norm_sums_##suffix(                                    \
        float* __restrict__ partials, const T* __restrict__ dy, const T* __restrict__ x,                             \
        const float* __restrict__ mean, const float* __restrict__ rstd, uint32_t rows, uint32_t channels,            \
        uint32_t rows_per_partial) {                                                                                 \
        gradient_sums(partials, dy, x, mean, rstd, rows, channels, rows_per_partial, ByChannel{});                   \
    }                                                                                                                \
    REGISTER(batch_norm_sums_##suffix)                                                                               \
    BATCH_NORM_WIDTH(T, suffix, 1)                                                                                   \
    BATCH_NORM_WIDTH(T, suffix, 4)

BATCH_NORM(float, f32)
BATCH_NORM(bf16, bf16)
BATCH_NORM(f16, f16)
