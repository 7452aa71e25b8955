// Rows of channels held in the registers of a group of warps, so that each row is read once.
#pragma once
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int BLOCK_WARPS = 8;
constexpr int BLOCK = 32 * BLOCK_WARPS;
// Groups of four channels that a thread holds: 768 channels a warp.
constexpr int QUADS = 6;
// Sums of both numbers over a group of warps, in each of its threads. All groups of the block must make the call
// together.
template <int Warps>
__device__ __forceinline__ float2 group_sums(float a, float b) {
    a = warp_sum(a);
    b = warp_sum(b);
    if constexpr (Warps == 1) {
        return make_float2(a, b);
    } else {
        __shared__ float2 sums[BLOCK_WARPS];
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) sums[warp] = make_float2(a, b);
        __syncthreads();
        float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < Warps; ++i) {
            const float2 other = sums[warp / Warps * Warps + i];
            total.x += other.x;
            total.y += other.y;
        }
        // The next call must not overwrite the sums before all threads have read them.
        __syncthreads();
        return total;
    }
}

__device__ __forceinline__ float sum_of(float4 v) { return (v.x + v.y) + (v.z + v.w); }

__device__ __forceinline__ float inner_product(float4 a, float4 b) {
    return (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w);
}
