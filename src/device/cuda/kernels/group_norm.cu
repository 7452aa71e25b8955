// Group normalization: each group of channels of a sample over all pixels, and its gradient. A block has a group of a
// sample; the groups of a pixel are consecutive channels.
#include "channel_sums.cuh"
#include "reductions.cuh"

// A group of a sample.
struct Group {
    // Elements of the group, and the first one's index in x.
    uint32_t elements;
    uint64_t start;
    uint32_t first_channel;
    uint32_t group_channels;
    uint32_t channels;

    __device__ __forceinline__ Group(uint32_t pixels, uint32_t channels, uint32_t groups)
        : group_channels(channels / groups), channels(channels) {
        const uint32_t sample = blockIdx.x / groups;
        elements = pixels * group_channels;
        first_channel = blockIdx.x % groups * group_channels;
        start = static_cast<uint64_t>(sample) * pixels * channels + first_channel;
    }

    // The sum of `term(index in x, channel)` over the group, in every thread. Sums of a few terms are in f32.
    template <class Term>
    __device__ __forceinline__ double sum(const Term& term) const {
        double total = 0.0;
        for (uint32_t begin = threadIdx.x; begin < elements; begin += ROWS * BLOCK) {
            float some = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < ROWS; ++i) {
                const uint32_t element = begin + i * BLOCK;
                if (element < elements) some += at(element, term);
            }
            total += some;
        }
        return block_sum(total);
    }

    // Calls `work(index in x, channel)` for each element.
    template <class Work>
    __device__ __forceinline__ void for_each(const Work& work) const {
        for (uint32_t element = threadIdx.x; element < elements; element += BLOCK) at(element, work);
    }

    template <class Work>
    __device__ __forceinline__ auto at(uint32_t element, const Work& work) const {
        const uint32_t pixel = element / group_channels;
        const uint32_t channel = element % group_channels;
        return work(start + static_cast<uint64_t>(pixel) * channels + channel, first_channel + channel);
    }
};

template <class T>
__device__ __forceinline__ void forward(T* y, float* mean, float* rstd, const T* x, const float* weight,
                                        const float* bias, uint32_t pixels, uint32_t channels, uint32_t groups,
                                        float epsilon) {
    const Group group(pixels, channels, groups);
    // Differences from the first element are small even if the mean is large.
    const float first = to_float(x[group.start]);
    const double ahead = group.sum([&](uint64_t i, uint32_t) { return to_float(x[i]) - first; }) / group.elements;
    const float centre_ahead = static_cast<float>(ahead);
    const double squares = group.sum([&](uint64_t i, uint32_t) {
        const float difference = (to_float(x[i]) - first) - centre_ahead;
        return difference * difference;
    });
    const double exact = first + ahead;
    const float centre = static_cast<float>(exact);
    // What rounding the mean leaves.
    const float rest = static_cast<float>(exact - centre);
    const float scale = static_cast<float>(1.0 / sqrt(squares / group.elements + epsilon));
    group.for_each([&](uint64_t i, uint32_t c) {
        y[i] = from_float<T>(((to_float(x[i]) - centre) - rest) * (scale * weight[c]) + bias[c]);
    });
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = centre;
        rstd[blockIdx.x] = scale;
    }
}

// `before` may be null, or dx itself; dx may be dy.
template <class T>
__device__ __forceinline__ void backward(T* dx, const T* dy, const T* x, const float* weight, const float* mean,
                                         const float* rstd, const T* before, uint32_t pixels, uint32_t channels,
                                         uint32_t groups) {
    const Group group(pixels, channels, groups);
    const float centre = mean[blockIdx.x];
    const float scale = rstd[blockIdx.x];
    const double sum = group.sum([&](uint64_t i, uint32_t c) { return to_float(dy[i]) * weight[c]; });
    const double product = group.sum([&](uint64_t i, uint32_t c) {
        return to_float(dy[i]) * weight[c] * ((to_float(x[i]) - centre) * scale);
    });
    const float through = static_cast<float>(sum / group.elements);
    const float along = static_cast<float>(product / group.elements);
    group.for_each([&](uint64_t i, uint32_t c) {
        const float normal = (to_float(x[i]) - centre) * scale;
        const float slope = scale * (to_float(dy[i]) * weight[c] - through - normal * along);
        dx[i] = from_float<T>((before == nullptr ? 0.0f : to_float(before[i])) + slope);
    });
}

#define GROUP_NORM(T, suffix)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK) group_norm_##suffix(                                         \
        T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, const T* __restrict__ x,              \
        const float* __restrict__ weight, const float* __restrict__ bias, uint32_t pixels, uint32_t channels,        \
        uint32_t groups, float epsilon) {                                                                            \
        forward(y, mean, rstd, x, weight, bias, pixels, channels, groups, epsilon);                                  \
    }                                                                                                                \
    REGISTER(group_norm_##suffix)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK) group_norm_sums_##suffix(                                    \
        float* __restrict__ partials, const T* __restrict__ dy, const T* __restrict__ x,                             \
        const float* __restrict__ mean, const float* __restrict__ rstd, uint32_t rows, uint32_t channels,            \
        uint32_t rows_per_partial, uint32_t pixels, uint32_t groups) {                                               \
        const ByGroup place = {pixels, groups, channels / groups};                                                   \
        gradient_sums(partials, dy, x, mean, rstd, rows, channels, rows_per_partial, place);                         \
    }                                                                                                                \
    REGISTER(group_norm_sums_##suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK) group_norm_backward_##suffix(                                \
        T* dx, const T* dy, const T* __restrict__ x, const float* __restrict__ weight,                               \
        const float* __restrict__ mean, const float* __restrict__ rstd, const T* before, uint32_t pixels,            \
        uint32_t channels, uint32_t groups) {                                                                        \
        backward(dx, dy, x, weight, mean, rstd, before, pixels, channels, groups);                                   \
    }                                                                                                                \
    REGISTER(group_norm_backward_##suffix)

GROUP_NORM(float, f32)
GROUP_NORM(bf16, bf16)
GROUP_NORM(f16, f16)
