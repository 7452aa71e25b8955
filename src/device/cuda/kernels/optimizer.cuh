// What all updates of buckets have in common.
#pragma once
#include "tables.cuh"

constexpr int BLOCK = 256;

// Runs of four elements that a thread updates.
constexpr int UPDATE_QUADS = 4;
constexpr uint64_t UPDATE_ELEMENTS = 4 * UPDATE_QUADS * BLOCK;

// Whether what a rule takes as gradients was made of them by another: it counts as it is.
template <class Rule>
constexpr bool TAKES_DIRECTIONS = false;

// One tensor of a bucket. Its blocks take UPDATE_ELEMENTS each.
struct UpdateEntry {
    uint64_t first_block;
    uint64_t offset;
    uint64_t len;
    // Whether the parameters decay.
    uint64_t decay;
    // Of the tensor's random numbers.
    uint64_t site;

    // The elements of this block.
    __device__ __forceinline__ uint64_t begin() const { return (blockIdx.x - first_block) * UPDATE_ELEMENTS; }
    __device__ __forceinline__ uint32_t count() const {
        return static_cast<uint32_t>(min(UPDATE_ELEMENTS, len - begin()));
    }
};

// In what follows, `norm` is null where gradients are neither clipped nor scaled, `scaling` where they are not scaled. A step
// whose scaled gradients have no finite norm is left out.
__device__ __forceinline__ bool is_left_out(const float* norm, const float* scaling) {
    return scaling != nullptr && !(norm[0] < INFINITY);
}

// What gradients are multiplied by: what clipping leaves of them, over the loss scale.
__device__ __forceinline__ float share(float clip_norm, const float* norm, const float* scaling) {
    float share = 1.0f;
    if (norm != nullptr) {
        const float ratio = clip_norm / (norm[0] + 1e-6f);
        // A norm that is not a number must show in the parameters.
        if (clip_norm < INFINITY && !(ratio > 1.0f)) share = ratio;
    }
    return scaling == nullptr ? share : share / scaling[0];
}
