// What all updates of buckets have in common, and what each does to one number.
#pragma once
#include "tables.cuh"

constexpr int BLOCK = 256;

// Runs of four elements that a thread updates.
constexpr int UPDATE_QUADS = 4;
constexpr uint64_t UPDATE_ELEMENTS = 4 * UPDATE_QUADS * BLOCK;

// One tensor of a bucket. Its blocks take UPDATE_ELEMENTS each.
struct UpdateEntry {
    uint64_t first_block;
    uint64_t offset;
    uint64_t len;
    // Whether the parameters decay.
    uint64_t decay;
    // Of the tensor's random numbers.
    uint64_t site;

    // The elements of this block.
    __device__ __forceinline__ uint64_t begin() const { return (blockIdx.x - first_block) * UPDATE_ELEMENTS; }
    __device__ __forceinline__ uint32_t count() const {
        return static_cast<uint32_t>(min(UPDATE_ELEMENTS, len - begin()));
    }
};

// In what follows, `norm` is null where gradients are neither clipped nor scaled, `scaling` where they are not scaled. A step
// whose scaled gradients have no finite norm is left out.
__device__ __forceinline__ bool is_left_out(const float* norm, const float* scaling) {
    return scaling != nullptr && !(norm[0] < INFINITY);
}

// What gradients are multiplied by: what clipping leaves of them, over the loss scale.
__device__ __forceinline__ float share(float clip_norm, const float* norm, const float* scaling) {
    float share = 1.0f;
    if (norm != nullptr) {
        const float ratio = clip_norm / (norm[0] + 1e-6f);
        // A norm that is not a number must show in the parameters.
        if (clip_norm < INFINITY && !(ratio > 1.0f)) share = ratio;
    }
    return scaling == nullptr ? share : share / scaling[0];
}

// What is the same for all elements of all steps.
struct AdamW {
    // What remains of the moments, and what the gradient and its square add to them: f32 of numbers made in f64.
    float beta1;
    float added1;
    float beta2;
    float added2;
    float epsilon;
    float weight_decay;
    // Infinite: gradients are not clipped.
    float clip_norm;
    uint32_t padding;
};

// What is the same for all elements of a tensor in one step.
struct AdamWStep {
    // What the gradient is multiplied by.
    float gradient;
    // Learning rate over the first moment's bias correction.
    float rate;
    // 1 over the root of the second moment's bias correction.
    float correction;
    // What remains of a parameter.
    float kept;

    __device__ __forceinline__ AdamWStep(const AdamW& constants, const UpdateEntry& entry, const float* numbers,
                                         const float* norm, const float* scaling) {
        gradient = share(constants.clip_norm, norm, scaling);
        rate = numbers[0] / numbers[1];
        correction = 1.0f / sqrtf(numbers[2]);
        kept = entry.decay ? 1.0f - numbers[0] * constants.weight_decay : 1.0f;
    }
};

__device__ __forceinline__ void update(const AdamW& adamw, const AdamWStep& step, float& parameter, float gradient,
                                       float& first, float& second) {
    gradient *= step.gradient;
    first = adamw.beta1 * first + adamw.added1 * gradient;
    second = adamw.beta2 * second + adamw.added2 * gradient * gradient;
    const float denominator = sqrtf(second) * step.correction + adamw.epsilon;
    parameter = parameter * step.kept - step.rate * (first / denominator);
}

__device__ __forceinline__ void update(const AdamW& adamw, const AdamWStep& step, float4& p, float4 g, float4& m,
                                       float4& v) {
    update(adamw, step, p.x, g.x, m.x, v.x);
    update(adamw, step, p.y, g.y, m.y, v.y);
    update(adamw, step, p.z, g.z, m.z, v.z);
    update(adamw, step, p.w, g.w, m.w, v.w);
}

// What is the same for all elements of all steps.
struct Sgd {
    float momentum;
    // 1 for Nesterov's, 0 for Polyak's.
    float nesterov;
    float weight_decay;
    // Infinite: gradients are not clipped.
    float clip_norm;
};

// What is the same for all elements of a tensor in one step.
struct SgdStep {
    // What the gradient is multiplied by.
    float gradient;
    float rate;
    // What of a parameter is added to its gradient.
    float decay;

    __device__ __forceinline__ SgdStep(const Sgd& constants, const UpdateEntry& entry, const float* numbers,
                                       const float* norm, const float* scaling) {
        gradient = share(constants.clip_norm, norm, scaling);
        rate = numbers[0];
        decay = entry.decay ? constants.weight_decay : 0.0f;
    }
};

__device__ __forceinline__ void descend(const SgdStep& step, float& parameter, float gradient) {
    parameter -= step.rate * (gradient * step.gradient + step.decay * parameter);
}

__device__ __forceinline__ void roll(const Sgd& sgd, const SgdStep& step, float& parameter, float gradient,
                                     float& velocity) {
    gradient = gradient * step.gradient + step.decay * parameter;
    velocity = sgd.momentum * velocity + gradient;
    parameter -= step.rate * (sgd.nesterov != 0.0f ? gradient + sgd.momentum * velocity : velocity);
}

__device__ __forceinline__ void roll(const Sgd& sgd, const SgdStep& step, float4& p, float4 g, float4& v) {
    roll(sgd, step, p.x, g.x, v.x);
    roll(sgd, step, p.y, g.y, v.y);
    roll(sgd, step, p.z, g.z, v.z);
    roll(sgd, step, p.w, g.w, v.w);
}
