// RMS normalisation of query and key heads of any widths (QK norm), and its gradient: heads that are too wide for
// `head_norm`, or all queries and all keys as one head each.
//
// A row of qkv has H query heads of P channels, then G key and G value heads of Q channels. A block processes one head at
// a time.
#include "reductions.cuh"

constexpr int BLOCK = 256;

struct Heads {
    // H and G.
    uint32_t queries;
    uint32_t keys;
    // P and Q.
    uint32_t query_channels;
    uint32_t key_channels;
};

__device__ __forceinline__ uint64_t row_channels(const Heads& heads) {
    return static_cast<uint64_t>(heads.queries) * heads.query_channels + 2ull * heads.keys * heads.key_channels;
}

// The first channel of a head within its row.
__device__ __forceinline__ uint64_t first_channel(const Heads& heads, uint32_t head) {
    if (head < heads.queries) return static_cast<uint64_t>(head) * heads.query_channels;
    return static_cast<uint64_t>(heads.queries) * heads.query_channels +
           static_cast<uint64_t>(head - heads.queries) * heads.key_channels;
}

// One block per row and head.
template <class T>
__device__ __forceinline__ void forward(T* y, float* rrms, const T* qkv, const float* query_weight,
                                        const float* key_weight, const Heads& heads, float offset, float epsilon) {
    const uint32_t all = heads.queries + 2 * heads.keys, normed = heads.queries + heads.keys;
    const uint32_t row = blockIdx.x / all, head = blockIdx.x % all;
    const bool is_query = head < heads.queries;
    const uint32_t channels = is_query ? heads.query_channels : heads.key_channels;
    const uint64_t start = row * row_channels(heads) + first_channel(heads, head);
    qkv += start;
    y += start;
    if (head >= normed) {
        for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) y[c] = qkv[c];
        return;
    }
    float squares = 0.0f;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) squares += to_float(qkv[c]) * to_float(qkv[c]);
    const float scale = 1.0f / sqrtf(block_sum(squares) / channels + epsilon);
    const float* weight = is_query ? query_weight : key_weight;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
        y[c] = from_float<T>(to_float(qkv[c]) * scale * (weight[c] + offset));
    }
    if (threadIdx.x == 0) rrms[static_cast<uint64_t>(row) * normed + head] = scale;
}

// The blocks of a partial sum process its queries (`blockIdx.y` 0), its keys (1) and its values (2), row by row. Each
// thread always processes the same channels, and alone updates their partial sums in global memory.
template <class T>
__device__ __forceinline__ void backward(T* dqkv, float* partials, const T* dy, const T* qkv, const float* query_weight,
                                         const float* key_weight, const float* rrms, const Heads& heads, uint32_t rows,
                                         float offset, uint32_t rows_per_partial) {
    const uint32_t normed = heads.queries + heads.keys;
    const bool is_query = blockIdx.y == 0, is_value = blockIdx.y == 2;
    const uint32_t begin = is_query ? 0 : is_value ? normed : heads.queries;
    const uint32_t end = begin + (is_query ? heads.queries : heads.keys);
    const uint32_t channels = is_query ? heads.query_channels : heads.key_channels;
    const float* weight = is_query ? query_weight : key_weight;
    float* dweight = partials + static_cast<uint64_t>(blockIdx.x) * (heads.query_channels + heads.key_channels) +
                     (is_query ? 0 : heads.query_channels);
    if (!is_value) {
        for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) dweight[c] = 0.0f;
    }
    const uint32_t first = blockIdx.x * rows_per_partial;
    for (uint32_t row = first; row < min(rows, first + rows_per_partial); ++row) {
        for (uint32_t head = begin; head < end; ++head) {
            const uint64_t start = row * row_channels(heads) + first_channel(heads, head);
            if (is_value) {
                for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) dqkv[start + c] = dy[start + c];
                continue;
            }
            const float scale = rrms[static_cast<uint64_t>(row) * normed + head];
            float along = 0.0f;
            for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
                const float d = to_float(dy[start + c]), normal = to_float(qkv[start + c]) * scale;
                dweight[c] += d * normal;
                along += d * (weight[c] + offset) * normal;
            }
            along = block_sum(along) / channels;
            for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
                const float normal = to_float(qkv[start + c]) * scale;
                const float slope = to_float(dy[start + c]) * (weight[c] + offset);
                dqkv[start + c] = from_float<T>(scale * (slope - normal * along));
            }
        }
    }
}

#define WIDE_HEAD_NORM(T, suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                               \
        wide_head_norm_##suffix(T* y, float* rrms, const T* qkv, const float* query_weight, const float* key_weight,  \
                                const Heads heads, float offset, float epsilon) {                                     \
        forward(y, rrms, qkv, query_weight, key_weight, heads, offset, epsilon);                                      \
    }                                                                                                                 \
    REGISTER(wide_head_norm_##suffix)                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK) wide_head_norm_backward_##suffix(                             \
        T* dqkv, float* partials, const T* dy, const T* qkv, const float* query_weight, const float* key_weight,      \
        const float* rrms, const Heads heads, uint32_t rows, float offset, uint32_t rows_per_partial) {               \
        backward(dqkv, partials, dy, qkv, query_weight, key_weight, rrms, heads, rows, offset, rows_per_partial);     \
    }                                                                                                                 \
    REGISTER(wide_head_norm_backward_##suffix)

WIDE_HEAD_NORM(float, f32)
WIDE_HEAD_NORM(bf16, bf16)
WIDE_HEAD_NORM(f16, f16)
