// RMS normalisation of query and key heads (QK norm), and its gradient.
//
// A row of qkv has H query, G key and G value heads of D channels each. A group of lanes processes one head at a time:
// D / 8 lanes, rounded up to a power of two, with eight channels each; a warp if D is not a multiple of eight.
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / 32;
// Maximum number of channels of a head (the limit of attention), and channels per lane.
constexpr int MOST = 256;
constexpr int EACH = MOST / 32;
// Channels of a lane of a group.
constexpr int RUN = 8;

struct Heads {
    // H, and H + G.
    uint32_t queries;
    uint32_t normed;
    // H + 2G.
    uint32_t all;
    // D.
    uint32_t channels;
};

// Sum over a group of `lanes` lanes, a power of two, in each of them. All lanes of the warp make the call.
__device__ __forceinline__ float lane_sum(float value, uint32_t lanes) {
    for (uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(FULL_WARP, value, static_cast<int>(distance));
    }
    return value;
}

template <class T>
__device__ __forceinline__ void forward(T* y, float* rrms, const T* qkv, const float* query_weight,
                                        const float* key_weight, const Heads& heads, uint32_t items, uint32_t lanes,
                                        float offset, float epsilon) {
    const uint32_t item = blockIdx.x * (BLOCK / lanes) + threadIdx.x / lanes;
    const uint32_t first = threadIdx.x % lanes * RUN;
    const bool is_active = item < items && first < heads.channels;
    const uint32_t row = item / heads.all, head = item % heads.all;
    const uint64_t start = static_cast<uint64_t>(item) * heads.channels + first;
    float values[RUN] = {};
    if (is_active) load_eight(values, qkv + start);
    float squares = 0.0f;
#pragma unroll
    for (float value : values) squares += value * value;
    const float scale = 1.0f / sqrtf(lane_sum(squares, lanes) / heads.channels + epsilon);
    if (!is_active) return;
    if (head < heads.normed) {
        float weights[RUN];
        load_eight(weights, (head < heads.queries ? query_weight : key_weight) + first);
#pragma unroll
        for (int i = 0; i < RUN; ++i) values[i] = values[i] * scale * (weights[i] + offset);
        if (first == 0) rrms[static_cast<uint64_t>(row) * heads.normed + head] = scale;
    }
    store_eight(y + start, values);
}

// One warp per head.
template <class T>
__device__ __forceinline__ void forward_any(T* y, float* rrms, const T* qkv, const float* query_weight,
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

// A block computes one partial sum of the weights' gradients, of each group of lanes first, then of the block in order
// (deterministic). `sums` holds [groups, 2, lanes * RUN].
__device__ __forceinline__ void sum_groups(float* partials, const float* sums, uint32_t lanes, uint32_t channels) {
    __syncthreads();
    partials += static_cast<uint64_t>(blockIdx.x) * 2 * channels;
    for (uint32_t c = threadIdx.x; c < 2 * channels; c += BLOCK) {
        const uint32_t which = c < channels ? 0 : 1, channel = c - which * channels;
        float sum = 0.0f;
        for (uint32_t group = 0; group < BLOCK / lanes; ++group) {
            sum += sums[(2 * group + which) * lanes * RUN + channel];
        }
        partials[c] = sum;
    }
}

template <class T>
__device__ __forceinline__ void backward(T* dqkv, float* partials, const T* dy, const T* qkv, const float* query_weight,
                                         const float* key_weight, const float* rrms, const Heads& heads, uint32_t rows,
                                         uint32_t lanes, float offset, float* sums, uint32_t rows_per_partial) {
    const uint32_t group = threadIdx.x / lanes, groups = BLOCK / lanes, column = threadIdx.x % lanes * RUN;
    const uint32_t first = blockIdx.x * rows_per_partial;
    const uint32_t items = min(rows_per_partial, rows - first) * heads.all;
    float own[2][RUN] = {};
    // The groups of a warp make the same number of rounds: they share shuffles.
    for (uint32_t round = 0; round < items; round += groups) {
        const uint32_t item = round + group, head = item % heads.all;
        const bool is_active = item < items && column < heads.channels;
        const bool is_query = head < heads.queries, is_normed = is_active && head < heads.normed;
        const uint64_t row = first + item / heads.all;
        const uint64_t start = (row * heads.all + head) * heads.channels + column;
        float slopes[RUN] = {}, normals[RUN] = {};
        if (is_active) load_eight(slopes, dy + start);
        float scale = 0.0f, along = 0.0f;
        if (is_normed) {
            float weights[RUN];
            load_eight(normals, qkv + start);
            load_eight(weights, (is_query ? query_weight : key_weight) + column);
            scale = rrms[row * heads.normed + head];
#pragma unroll
            for (int i = 0; i < RUN; ++i) {
                normals[i] *= scale;
                own[0][i] += is_query ? slopes[i] * normals[i] : 0.0f;
                own[1][i] += is_query ? 0.0f : slopes[i] * normals[i];
                slopes[i] *= weights[i] + offset;
                along += slopes[i] * normals[i];
            }
        }
        along = lane_sum(along, lanes) / heads.channels;
        if (is_normed) {
#pragma unroll
            for (int i = 0; i < RUN; ++i) slopes[i] = scale * (slopes[i] - normals[i] * along);
        }
        if (is_active) store_eight(dqkv + start, slopes);
    }
#pragma unroll
    for (int which = 0; which < 2; ++which) store_eight(sums + (2 * group + which) * lanes * RUN + column, own[which]);
    sum_groups(partials, sums, lanes, heads.channels);
}

// One warp per head.
template <class T>
__device__ __forceinline__ void backward_any(T* dqkv, float* partials, const T* dy, const T* qkv,
                                             const float* query_weight, const float* key_weight, const float* rrms,
                                             const Heads& heads, uint32_t rows, float offset, float* sums,
                                             uint32_t rows_per_partial) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first = blockIdx.x * rows_per_partial, count = min(rows_per_partial, rows - first);
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
        sums[2 * warp * MOST + lane + 32 * i] = own[0][i];
        sums[(2 * warp + 1) * MOST + lane + 32 * i] = own[1][i];
    }
    sum_groups(partials, sums, 32, heads.channels);
}

#define HEAD_NORM(T, suffix)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        head_norm_##suffix(T* y, float* rrms, const T* qkv, const float* query_weight, const float* key_weight,      \
                           const Heads heads, uint32_t items, uint32_t lanes, float offset, float epsilon) {         \
        if (heads.channels % RUN == 0) {                                                                             \
            forward(y, rrms, qkv, query_weight, key_weight, heads, items, lanes, offset, epsilon);                   \
        } else {                                                                                                     \
            forward_any(y, rrms, qkv, query_weight, key_weight, heads, items, offset, epsilon);                      \
        }                                                                                                            \
    }                                                                                                                \
    REGISTER(head_norm_##suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        head_norm_backward_##suffix(T* dqkv, float* partials, const T* dy, const T* qkv, const float* query_weight,  \
                                    const float* key_weight, const float* rrms, const Heads heads, uint32_t rows,    \
                                    uint32_t lanes, float offset, uint32_t rows_per_partial) {                       \
        __shared__ __align__(16) float sums[2 * RUN * BLOCK];                                                        \
        if (heads.channels % RUN == 0) {                                                                             \
            backward(dqkv, partials, dy, qkv, query_weight, key_weight, rrms, heads, rows, lanes, offset, sums,      \
                     rows_per_partial);                                                                              \
        } else {                                                                                                     \
            backward_any(dqkv, partials, dy, qkv, query_weight, key_weight, rrms, heads, rows, offset, sums,         \
                         rows_per_partial);                                                                          \
        }                                                                                                            \
    }                                                                                                                \
    REGISTER(head_norm_backward_##suffix)

HEAD_NORM(float, f32)
HEAD_NORM(bf16, bf16)
HEAD_NORM(f16, f16)
