// Lion: the sign of a momentum (Chen et al. 2023).
#pragma once
#include "optimizer.cuh"

struct Lion {
    static constexpr int MOMENTS = 1;
    __device__ static constexpr bool is_signed(int) { return true; }

    // Weights of the momentum and the gradient in the direction: f32, rounded from f64.
    float beta1;
    float added1;
    // Decay rate of the momentum, and weight of the gradient added to it.
    float beta2;
    float added2;
    float weight_decay;
    uint32_t padding;

    // Per-tensor constants of one step.
    struct Step {
        float rate;
        // Factor of the parameter (weight decay).
        float kept;
    };

    __device__ __forceinline__ Step step(bool decays, const float* numbers) const {
        return {numbers[0], decays ? 1.0f - numbers[0] * weight_decay : 1.0f};
    }

    __device__ __forceinline__ void update(const Step& step, float& parameter, float gradient,
                                           float (&moments)[MOMENTS]) const {
        const float direction = beta1 * moments[0] + added1 * gradient;
        moments[0] = beta2 * moments[0] + added2 * gradient;
        // NaN has no sign, and must propagate to the parameters.
        float sign = direction;
        if (direction > 0.0f) sign = 1.0f;
        if (direction < 0.0f) sign = -1.0f;
        parameter = parameter * step.kept - step.rate * sign;
    }
};
