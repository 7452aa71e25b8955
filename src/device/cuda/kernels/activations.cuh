// Activation functions and their derivatives. To add one, add a struct and its line at the end. `slope` takes the saved
// value: x, or f(x) if KEEPS_RESULT.
#pragma once
#include "compat.cuh"

// Exact GELU: x times the standard normal distribution function.
struct Gelu {
    static constexpr bool KEEPS_RESULT = false;

    __device__ __forceinline__ static float value(float x) { return x * below(x); }

    __device__ __forceinline__ static float slope(float x) {
        return below(x) + x * 0.3989422804014327f * expf(-0.5f * x * x);
    }

    // erfc keeps precision far below 0, where 1 + erf cancels to 0.
    __device__ __forceinline__ static float below(float x) { return 0.5f * erfcf(-0.7071067811865476f * x); }
};

// Tanh approximation of GELU.
struct GeluTanh {
    static constexpr bool KEEPS_RESULT = false;
    // sqrt(8 / pi): twice GELU's factor, because (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)).
    static constexpr float SLOPE = 1.5957691216057308f;
    static constexpr float CUBE = 0.044715f;

    // 1 / (1 + e^(-2u)), from x and its square.
    __device__ __forceinline__ static float share(float x, float square) {
        return 1.0f / (1.0f + expf(-x * (SLOPE + SLOPE * CUBE * square)));
    }

    __device__ __forceinline__ static float value(float x) { return x * share(x, x * x); }

    __device__ __forceinline__ static float slope(float x) {
        const float square = x * x;
        const float share = GeluTanh::share(x, square);
        const float inner = SLOPE + 3.0f * SLOPE * CUBE * square;
        // share + x share (1 - share) 2 du/dx, with the small factors multiplied first: for large x they are 0, and x
        // times `inner` overflows.
        return share + share * (1.0f - share) * x * inner;
    }
};

struct Relu {
    static constexpr bool KEEPS_RESULT = true;

    __device__ __forceinline__ static float value(float x) { return x < 0.0f ? 0.0f : x; }

    __device__ __forceinline__ static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct ReluSquared {
    static constexpr bool KEEPS_RESULT = false;

    __device__ __forceinline__ static float value(float x) { return Relu::value(x) * Relu::value(x); }

    __device__ __forceinline__ static float slope(float x) { return 2.0f * Relu::value(x); }
};

// x / (1 + e^-x)
struct Silu {
    static constexpr bool KEEPS_RESULT = false;

    __device__ __forceinline__ static float share(float x) { return 1.0f / (1.0f + expf(-x)); }

    __device__ __forceinline__ static float value(float x) { return x * share(x); }

    // share + x share (1 - share)
    __device__ __forceinline__ static float slope(float x) {
        const float share = Silu::share(x);
        return share * (1.0f + x * (1.0f - share));
    }
};

struct Tanh {
    static constexpr bool KEEPS_RESULT = true;

    // By the polynomial of Cephes near 0, and by the exponential elsewhere, both without a branch: vectors of tanhf spill.
    __device__ __forceinline__ static float value(float x) {
        const float square = x * x;
        float p = fmaf(-5.7049887e-3f, square, 2.063909e-2f);
        p = fmaf(p, square, -5.3739716e-2f);
        p = fmaf(p, square, 0.13331442f);
        p = fmaf(p, square, -0.3333328f);
        const float near = fmaf(p * square, x, x);
        const float far = 1.0f - 2.0f / (1.0f + expf(2.0f * x));
        return fabsf(x) < 0.625f ? near : far;
    }

    __device__ __forceinline__ static float slope(float y) { return 1.0f - y * y; }
};

struct Sigmoid {
    static constexpr bool KEEPS_RESULT = true;

    __device__ __forceinline__ static float value(float x) { return Silu::share(x); }

    __device__ __forceinline__ static float slope(float y) { return y * (1.0f - y); }
};

struct LeakyRelu {
    static constexpr bool KEEPS_RESULT = true;
    static constexpr float BELOW = 0.01f;

    __device__ __forceinline__ static float value(float x) { return x > 0.0f ? x : BELOW * x; }

    __device__ __forceinline__ static float slope(float y) { return y > 0.0f ? 1.0f : BELOW; }
};

// Calls a macro for each activation, with its keyword in experiment files, which is the prefix of the kernel names.
#define EACH_ACTIVATION(CALL)                                                                                        \
    CALL(GeluTanh, gelu_tanh)                                                                                        \
    CALL(Gelu, gelu)                                                                                                 \
    CALL(Relu, relu)                                                                                                 \
    CALL(ReluSquared, relu_squared)                                                                                  \
    CALL(Silu, silu)                                                                                                 \
    CALL(Tanh, tanh)                                                                                                 \
    CALL(Sigmoid, sigmoid)                                                                                           \
    CALL(LeakyRelu, leaky_relu)
