// Sums and maxima over the threads of a warp or a block, in a fixed order (deterministic).
#pragma once
#include "compat.cuh"

constexpr uint32_t FULL_WARP = 0xffffffffu;

// Returns the sum in every lane.
template <class Number>
__device__ __forceinline__ Number warp_sum(Number value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(FULL_WARP, value, distance);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, distance));
    }
    return value;
}

// Returns the sum in every thread. The block consists of whole warps, and all of its threads make the call.
template <class Number>
__device__ __forceinline__ Number block_sum(Number value) {
    __shared__ Number sums[32];
    const int lane = threadIdx.x % 32;
    value = warp_sum(value);
    if (lane == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_sum(lane < static_cast<int>(blockDim.x / 32) ? sums[lane] : Number(0));
    // The next call must not overwrite the sums before all threads have read them.
    __syncthreads();
    return value;
}

__device__ __forceinline__ float block_max(float value) {
    __shared__ float maxima[32];
    const int lane = threadIdx.x % 32;
    value = warp_max(value);
    if (lane == 0) maxima[threadIdx.x / 32] = value;
    __syncthreads();
    value = warp_max(lane < static_cast<int>(blockDim.x / 32) ? maxima[lane] : -INFINITY);
    __syncthreads();
    return value;
}
