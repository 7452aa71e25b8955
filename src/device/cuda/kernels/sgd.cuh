// Stochastic gradient descent.
#pragma once
#include "optimizer.cuh"

// Per-tensor constants of one step.
struct SgdStep {
    float rate;
    // Multiple of the parameter added to its gradient (weight decay).
    float added;
};

// Without momentum.
struct Sgd {
    static constexpr int MOMENTS = 0;
    __device__ static constexpr bool is_signed(int) { return true; }

    using Step = SgdStep;

    float weight_decay;
    uint32_t padding;

    __device__ __forceinline__ Step step(bool decays, const float* numbers) const {
        return {numbers[0], decays ? weight_decay : 0.0f};
    }

    template <int N>
    __device__ __forceinline__ void update(const Step& step, float& parameter, float gradient, float (&)[N]) const {
        parameter -= step.rate * (gradient + step.added * parameter);
    }
};

struct SgdMomentum {
    static constexpr int MOMENTS = 1;
    __device__ static constexpr bool is_signed(int) { return true; }

    using Step = SgdStep;

    float momentum;
    // 1 for Nesterov momentum, 0 for Polyak (heavy-ball) momentum.
    float nesterov;
    float weight_decay;
    uint32_t padding;

    __device__ __forceinline__ Step step(bool decays, const float* numbers) const {
        return {numbers[0], decays ? weight_decay : 0.0f};
    }

    __device__ __forceinline__ void update(const Step& step, float& parameter, float gradient,
                                           float (&moments)[MOMENTS]) const {
        float& velocity = moments[0];
        gradient += step.added * parameter;
        velocity = momentum * velocity + gradient;
        parameter -= step.rate * (nesterov != 0.0f ? gradient + momentum * velocity : velocity);
    }
};
