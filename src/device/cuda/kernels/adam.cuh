// Adam, with weight decay in the gradients or beside them (Kingma and Ba 2015; Loshchilov and Hutter 2019).
#pragma once
#include "optimizer.cuh"

struct Adam {
    static constexpr int MOMENTS = 2;
    __device__ static constexpr bool is_signed(int moment) { return moment == 0; }

    // What remains of the moments, and what the gradient and its square add to them: f32 of numbers made in f64.
    float beta1;
    float added1;
    float beta2;
    float added2;
    float epsilon;
    float weight_decay;
    // 1 if weight decay is beside the gradients, 0 if it is in them.
    float decoupled;
    uint32_t padding;

    // What is the same for all elements of a tensor in one step.
    struct Step {
        // Learning rate over the first moment's bias correction.
        float rate;
        // 1 over the root of the second moment's bias correction.
        float correction;
        // What of a parameter is added to its gradient, and what remains of it besides.
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
