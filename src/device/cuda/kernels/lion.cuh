// Lion: the sign of a momentum (Chen et al. 2023).
#pragma once
#include "optimizer.cuh"

struct Lion {
    static constexpr int MOMENTS = 1;
    __device__ static constexpr bool is_signed(int) { return true; }

    // What the momentum and the gradient are to the direction: f32 of numbers made in f64.
    float beta1;
    float added1;
    // What remains of the momentum, and what the gradient adds to it.
    float beta2;
    float added2;
    float weight_decay;
    uint32_t padding;

    // What is the same for all elements of a tensor in one step.
    struct Step {
        float rate;
        // What remains of a parameter.
        float kept;
    };

    __device__ __forceinline__ Step step(bool decays, const float* numbers) const {
        return {numbers[0], decays ? 1.0f - numbers[0] * weight_decay : 1.0f};
    }

    __device__ __forceinline__ void update(const Step& step, float& parameter, float gradient,
                                           float (&moments)[MOMENTS]) const {
        const float direction = beta1 * moments[0] + added1 * gradient;
        moments[0] = beta2 * moments[0] + added2 * gradient;
        // What is not a number has no sign, and must show in the parameters.
        float sign = direction;
        if (direction > 0.0f) sign = 1.0f;
        if (direction < 0.0f) sign = -1.0f;
        parameter = parameter * step.kept - step.rate * sign;
    }
};
