// RMS normalisation of query and key heads (QK norm), and its gradient.
//
// A row of qkv has H query, G key and G value heads of D channels each. A warp processes one head at a time.
#include "reductions.cuh"

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
// Maximum number of channels of a head (the limit of attention), and channels per lane.
constexpr int MOST = 256;
constexpr int EACH = MOST / 32;
// Rows per partial sum of the weights' gradients; one block computes one partial sum.
constexpr uint32_t ROWS_PER_PARTIAL = 64;

struct Heads {
    // H, and H + G.
    uint32_t queries;
    uint32_t normed;
    // H + 2G.
    uint32_t all;
    // D.
    uint32_t channels;
};

template <class T>
__device__ __forceinline__ void forward(T* y, float* rrms, const T* qkv, const float* query_weight,
                                        const float* key_weight, const Heads& heads, uint32_t items, float offset,
                                        float epsilon) {
    const uint32_t item = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (item >= items) return;
    const uint32_t row = item / heads.all, head = item % heads.all;
    qkv += static_cast<uint64_t>(item) * heads.channels;
    y += static_cast<uint64_t>(item) * heads.channels;
    if (head >= heads.normed) {
        for (uint32_t c = lane; c < heads.channels; c += 32) y[c] = qkv[c];
        return;
    }
    float squares = 0.0f;
    for (uint32_t c = lane; c < heads.channels; c += 32) squares += to_float(qkv[c]) * to_float(qkv[c]);
    const float scale = 1.0f / sqrtf(warp_sum(squares) / heads.channels + epsilon);
    const float* weight = head < heads.queries ? query_weight : key_weight;
    for (uint32_t c = lane; c < heads.channels; c += 32) {
        y[c] = from_float<T>(to_float(qkv[c]) * scale * (weight[c] + offset));
    }
    if (lane == 0) rrms[static_cast<uint64_t>(row) * heads.normed + head] = scale;
}

// One block processes the rows of one partial sum. A warp sums over its heads, and the block over its warps in order
// (deterministic).
template <class T>
__device__ __forceinline__ void backward(T* dqkv, float* partials, const T* dy, const T* qkv, const float* query_weight,
                                         const float* key_weight, const float* rrms, const Heads& heads, uint32_t rows,
                                         float offset) {
    __shared__ float sums[WARPS][2][MOST];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first = blockIdx.x * ROWS_PER_PARTIAL, count = min(ROWS_PER_PARTIAL, rows - first);
    float own[2][EACH] = {};
    for (uint32_t item = warp; item < count * heads.all; item += WARPS) {
        const uint32_t row = first + item / heads.all, head = item % heads.all;
        const uint64_t start = (static_cast<uint64_t>(row) * heads.all + head) * heads.channels;
        if (head >= heads.normed) {
            for (uint32_t c = lane; c < heads.channels; c += 32) dqkv[start + c] = dy[start + c];
            continue;
        }
        const bool is_query = head < heads.queries;
        const float* weight = is_query ? query_weight : key_weight;
        const float scale = rrms[static_cast<uint64_t>(row) * heads.normed + head];
        float along = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const uint32_t c = lane + 32 * i;
            if (c < heads.channels) {
                const float d = to_float(dy[start + c]), normal = to_float(qkv[start + c]) * scale;
                own[0][i] += is_query ? d * normal : 0.0f;
                own[1][i] += is_query ? 0.0f : d * normal;
                along += d * (weight[c] + offset) * normal;
            }
        }
        along = warp_sum(along) / heads.channels;
        for (uint32_t c = lane; c < heads.channels; c += 32) {
            const float normal = to_float(qkv[start + c]) * scale;
            const float slope = to_float(dy[start + c]) * (weight[c] + offset);
            dqkv[start + c] = from_float<T>(scale * (slope - normal * along));
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        sums[warp][0][lane + 32 * i] = own[0][i];
        sums[warp][1][lane + 32 * i] = own[1][i];
    }
    __syncthreads();
    partials += static_cast<uint64_t>(blockIdx.x) * 2 * heads.channels;
    for (uint32_t c = threadIdx.x; c < 2 * heads.channels; c += BLOCK) {
        const uint32_t which = c / heads.channels, channel = c % heads.channels;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += sums[w][which][channel];
        partials[c] = sum;
    }
}

#define HEAD_NORM(T, suffix)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        head_norm_##suffix(T* y, float* rrms, const T* qkv, const float* query_weight, const float* key_weight,      \
                           const Heads heads, uint32_t items, float offset, float epsilon) {                         \
        forward(y, rrms, qkv, query_weight, key_weight, heads, items, offset, epsilon);                              \
    }                                                                                                                \
    REGISTER(head_norm_##suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        head_norm_backward_##suffix(T* dqkv, float* partials, const T* dy, const T* qkv, const float* query_weight,  \
                                    const float* key_weight, const float* rrms, const Heads heads, uint32_t rows,    \
                                    float offset) {                                                                  \
        backward(dqkv, partials, dy, qkv, query_weight, key_weight, rrms, heads, rows, offset);                      \
    }                                                                                                                \
    REGISTER(head_norm_backward_##suffix)

HEAD_NORM(float, f32)
HEAD_NORM(bf16, bf16)
HEAD_NORM(f16, f16)
