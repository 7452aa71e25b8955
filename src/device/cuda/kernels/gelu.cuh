// The tanh form of GELU and its slope.
#pragma once
#include "compat.cuh"

// sqrt(8 / pi): twice GELU's factor, because (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)).
constexpr float GELU_SLOPE = 1.5957691216057308f;
constexpr float GELU_CUBE = 0.044715f;

// 1 / (1 + e^(-2u)), from x and its square.
__device__ __forceinline__ float gelu_share(float x, float square) {
    return 1.0f / (1.0f + expf(-x * (GELU_SLOPE + GELU_SLOPE * GELU_CUBE * square)));
}

__device__ __forceinline__ float gelu(float x) { return x * gelu_share(x, x * x); }

__device__ __forceinline__ float gelu_slope(float x) {
    const float square = x * x;
    const float share = gelu_share(x, square);
    const float inner = GELU_SLOPE + 3.0f * GELU_SLOPE * GELU_CUBE * square;
    // share + x share (1 - share) 2 du/dx, small factors first: for large x they are 0, and x times `inner` overflows.
    return share + share * (1.0f - share) * x * inner;
}
