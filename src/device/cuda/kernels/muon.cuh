// Muon (Jordan et al. 2024): the elementwise steps before and after its matrix products.
#pragma once
#include "optimizer.cuh"

// Updates the momentum. The direction is written through the `parameters` pointer, whose previous contents are ignored.
struct MuonMomentum {
    static constexpr int MOMENTS = 1;
    __device__ static constexpr bool is_signed(int) { return true; }

    // Weight of the gradient in the momentum, and in the direction relative to it (Nesterov): f32, rounded from f64.
    float added;
    float ahead;

    struct Step {};

    __device__ __forceinline__ Step step(bool, const float*) const { return {}; }

    __device__ __forceinline__ void update(const Step&, float& direction, float gradient, float (&moments)[MOMENTS]) const {
        float& momentum = moments[0];
        momentum += added * (gradient - momentum);
        direction = momentum + ahead * (gradient - momentum);
    }
};

// Updates the parameters with the orthogonalized direction.
struct Muon {
    static constexpr int MOMENTS = 0;
    __device__ static constexpr bool is_signed(int) { return true; }

    float weight_decay;
    uint32_t padding;

    struct Step {
        float rate;
        // Factor of the parameter (weight decay).
        float kept;
    };

    __device__ __forceinline__ Step step(bool decays, const float* numbers) const {
        return {numbers[0], decays ? 1.0f - numbers[0] * weight_decay : 1.0f};
    }

    template <int N>
    __device__ __forceinline__ void update(const Step& step, float& parameter, float direction, float (&)[N]) const {
        parameter = parameter * step.kept - step.rate * direction;
    }
};

template <>
constexpr bool TAKES_DIRECTIONS<Muon> = true;
