// Muon (Jordan et al. 2024), before its products and behind them.
#pragma once
#include "optimizer.cuh"

// Moves the momentum. What it stores as parameters is the direction; what they were makes no difference.
struct MuonMomentum {
    static constexpr int MOMENTS = 1;
    __device__ static constexpr bool is_signed(int) { return true; }

    // What a gradient adds to the mean, and how far the direction lies ahead of it: f32 of numbers made in f64.
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

// Takes what the products made of the direction.
struct Muon {
    static constexpr int MOMENTS = 0;
    __device__ static constexpr bool is_signed(int) { return true; }

    float weight_decay;
    uint32_t padding;

    struct Step {
        float rate;
        // What remains of a parameter.
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
