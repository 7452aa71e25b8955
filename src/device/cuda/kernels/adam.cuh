// Adam with coupled (L2) or decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019).
#pragma once
#include "optimizer.cuh"

struct Adam {
    static constexpr int MOMENTS = 2;
    __device__ static constexpr bool is_signed(int moment) { return moment == 0; }

    // Decay rates of the moments, and the weights of the gradient and of its square: f32, rounded from f64.
    float beta1;
    float added1;
    float beta2;
    float added2;
    float epsilon;
    float weight_decay;
    // 1 for decoupled weight decay (AdamW), 0 for decay added to the gradients.
    float decoupled;
    uint32_t padding;

    // Per-tensor constants of one step.
    struct Step {
        // Learning rate over the first moment's bias correction.
        float rate;
        // 1 over the root of the second moment's bias correction.
        float correction;
        // Multiple of the parameter added to its gradient (coupled decay), and factor of the parameter (decoupled
        // decay).
        float added;
        float kept;
    };

    __device__ __forceinline__ Step step(bool decays, const float* numbers) const {
        const float decay = decays ? weight_decay : 0.0f;
        const bool beside = decoupled != 0.0f;
        return {numbers[0] / numbers[2], 1.0f / sqrtf(numbers[3]), beside ? 0.0f : decay,
                beside ? 1.0f - numbers[0] * decay : 1.0f};
    }

    __device__ __forceinline__ void update(const Step& step, float& parameter, float gradient,
                                           float (&moments)[MOMENTS]) const {
        float& first = moments[0];
        float& second = moments[1];
        gradient += step.added * parameter;
        first = beta1 * first + added1 * gradient;
        second = beta2 * second + added2 * gradient * gradient;
        const float denominator = sqrtf(second) * step.correction + epsilon;
        parameter = parameter * step.kept - step.rate * (first / denominator);
    }
};
