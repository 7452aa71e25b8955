// Losses of single elements: the mean of a function of prediction and target, or the sum of predictions.
#include "reductions.cuh"
#include "vectors.cuh"

// (x - target)^2
struct SquaredError {
    static constexpr bool SUM = false;
    float loss;
    float slope;

    __device__ __forceinline__ SquaredError(float x, float target) {
        const float difference = x - target;
        loss = difference * difference;
        slope = 2.0f * difference;
    }
};

// Binary cross-entropy of a logit.
struct BinaryCrossEntropy {
    static constexpr bool SUM = false;
    float loss;
    float slope;

    __device__ __forceinline__ BinaryCrossEntropy(float x, float target) {
        // e^-|x| does not overflow.
        const float tail = expf(-fabsf(x));
        loss = fmaxf(x, 0.0f) - x * target + log1pf(tail);
        slope = (x >= 0.0f ? 1.0f : tail) / (1.0f + tail) - target;
    }
};

// x, without a target.
struct Sum {
    static constexpr bool SUM = true;
    float loss;
    float slope = 1.0f;

    __device__ __forceinline__ Sum(float x, float) : loss(x) {}
};

// One block per row of `columns` elements: its weighted loss, a mean or a sum, and, unless `dx` is null, the gradient. `dx` may be
// `x`; `scaling` and `weights` may be null. A sum has no targets, and counts each sample with a weight. `first` is the index of the first row among all rows of the batch.
template <class F, class T>
__device__ __forceinline__ void elementwise_loss(float* losses, T* dx, const T* x, const float* targets,
                                                 const float* scaling, uint32_t columns, float scale,
                                                 const float* weights, uint32_t first, uint32_t rows_of_sample) {
    float weight = weights == nullptr ? 1.0f : weights[(first + blockIdx.x) / rows_of_sample];
    if constexpr (F::SUM) weight = weight != 0.0f ? 1.0f : 0.0f;
    scale *= weight;
    if (scaling != nullptr) scale *= scaling[0];
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * columns;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
        const F element(to_float(x[start + i]), F::SUM ? 0.0f : targets[start + i]);
        sum += element.loss;
        if (dx != nullptr) dx[start + i] = from_float<T>(element.slope * scale);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = F::SUM ? weight * sum : weight * sum / columns;
}

#define ELEMENTWISE_LOSS(F, name, T, suffix)                                                                         \
    extern "C" __global__ void __launch_bounds__(1024) name##_##suffix(                                               \
        float* __restrict__ losses, T* dx, const T* x, const float* __restrict__ targets,                            \
        const float* __restrict__ scaling, uint32_t columns, float scale, const float* __restrict__ weights,          \
        uint32_t first, uint32_t rows_of_sample) {                                                                   \
        elementwise_loss<F>(losses, dx, x, targets, scaling, columns, scale, weights, first, rows_of_sample);        \
    }                                                                                                                \
    REGISTER(name##_##suffix)

#define ALL(F, name)                                                                                                 \
    ELEMENTWISE_LOSS(F, name, float, f32)                                                                            \
    ELEMENTWISE_LOSS(F, name, bf16, bf16)                                                                            \
    ELEMENTWISE_LOSS(F, name, f16, f16)

ALL(SquaredError, squared_error)
ALL(BinaryCrossEntropy, binary_cross_entropy)
ALL(Sum, sum)
