// Shared by all optimizer steps over buckets (flat parameter buffers).
#pragma once
#include "tables.cuh"

constexpr int BLOCK = 256;

// Groups of four consecutive elements that a thread updates.
constexpr int UPDATE_QUADS = 4;
constexpr uint64_t UPDATE_ELEMENTS = 4 * UPDATE_QUADS * BLOCK;

// Whether the gradients of a rule are directions computed by another kernel: they are then neither clipped nor scaled.
template <class Rule>
constexpr bool TAKES_DIRECTIONS = false;

// One tensor of a bucket. Each of its blocks processes UPDATE_ELEMENTS elements.
struct UpdateEntry {
    uint64_t first_block;
    uint64_t offset;
    uint64_t len;
    // Whether weight decay applies.
    uint64_t decay;
    // Site of the tensor's random numbers.
    uint64_t site;

    // Range of elements of this block.
    __device__ __forceinline__ uint64_t begin() const { return (blockIdx.x - first_block) * UPDATE_ELEMENTS; }
    __device__ __forceinline__ uint32_t count() const {
        return static_cast<uint32_t>(min(UPDATE_ELEMENTS, len - begin()));
    }
};

// Below, `norm` is null if gradients are neither clipped nor scaled, and `scaling` is null without loss scaling. A step
// whose scaled gradients have a non-finite norm is skipped.
__device__ __forceinline__ bool is_left_out(const float* norm, const float* scaling) {
    return scaling != nullptr && !(norm[0] < INFINITY);
}

// Factor of the gradients: the clipping factor over the loss scale.
__device__ __forceinline__ float share(float clip_norm, const float* norm, const float* scaling) {
    float share = 1.0f;
    if (norm != nullptr) {
        const float ratio = clip_norm / (norm[0] + 1e-6f);
        // A NaN norm must propagate to the parameters.
        if (clip_norm < INFINITY && !(ratio > 1.0f)) share = ratio;
    }
    return scaling == nullptr ? share : share / scaling[0];
}
