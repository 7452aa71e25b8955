// out = dropped(softmax(mask(cap(scale q k^T)))) v in f32: a block keeps a tile of one head's queries and loops over
// the tiles of keys and values, with a running maximum and sum for each query (online softmax).
#pragma once
#include "attention_f32.cuh"

// Tile sizes by padded head dimension; launches/attention.rs repeats them. Limit: 99 KiB of shared memory.
template <int D>
struct F32ForwardTiles {
    static constexpr int queries = D <= 128 ? 64 : 32;
    static constexpr int keys = D <= 128 ? 64 : 32;
};

// Maximum and sum over the sixteen lanes that share a row.
__device__ __forceinline__ float row_max(float value) {
#pragma unroll
    for (int distance = F32_SIDE / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
}

__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
    for (int distance = F32_SIDE / 2; distance > 0; distance /= 2) {
        value += __shfl_xor_sync(~0u, value, distance);
    }
    return value;
}

template <int D, class Sizes>
__device__ __forceinline__ void attention_forward(float* out, float* lse, const float* qkv,
                                                  const Sizes& sizes) {
    constexpr int QUERIES = F32ForwardTiles<D>::queries, KEYS = F32ForwardTiles<D>::keys;
    constexpr int DOWN = QUERIES / F32_SIDE, ACROSS = KEYS / F32_SIDE;
    DYN_SHARED(float, queries);                         // [QUERIES, D]
    float* others = queries + QUERIES * f32_stride(D);  // [KEYS, D]: keys, then values
    float* weights = others + KEYS * f32_stride(D);     // [QUERIES, KEYS]

    const Place place = Place::of_block(sizes, sizes.heads, tiles_of(sizes.sequence, QUERIES), true);
    const int key_head = place.head / sizes.shared;
    const int first_query = place.tile * QUERIES;
    const int last_query = first_query + QUERIES - 1;
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
    load_tile<D, QUERIES>(queries, queries_of(qkv, sizes, place.batch, place.head), first_query);

    float largest[DOWN], sum[DOWN];
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
        largest[i] = LEAST_SCORE;
        sum[i] = 0.0f;
    }
    HeadRows<D, QUERIES> weighted;
    for (int first_key = sizes.first_taken(place.batch, first_query); first_key < sizes.after_seen(last_query); first_key += KEYS) {
        __syncthreads();
        load_tile<D, KEYS>(others, keys_of(qkv, sizes, place.batch, key_head), first_key);
        __syncthreads();
        uint32_t kept = 0;
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept = kept_weights<true, QUERIES, KEYS>(sizes.chance, place.batch,
                                                         place.head * sizes.sequence + first_query, first_key);
            }
        }
        float scores[DOWN][ACROSS];
        multiply<D, QUERIES, KEYS>(scores, queries, others);
        if (sizes.cap > 0.0f) {
            cap_products<QUERIES, KEYS>(scores, sizes.cap);
        }
        if (Sizes::masked || first_key + KEYS > sizes.after_seen(first_query) ||
            first_key < sizes.first_seen(place.batch, last_query)) {
            hide_unseen<QUERIES, KEYS>(scores, sizes, place.batch, first_query, first_key);
        }
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
            float next = largest[i];
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                scores[i][j] *= sizes.scale;
                next = fmaxf(next, scores[i][j]);
            }
            next = row_max(next);
            const float kept = expf(largest[i] - next);
            largest[i] = next;
            sum[i] *= kept;
            weighted.scale(i, kept);
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                scores[i][j] = expf(scores[i][j] - next);
                sum[i] += scores[i][j];
            }
        }
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                drop<QUERIES, KEYS>(scores, kept, 1.0f);
            }
        }
        keep_scores<QUERIES, KEYS>(weights, scores);
        __syncthreads();
        load_tile<D, KEYS>(others, values_of(qkv, sizes, place.batch, key_head), first_key);
        __syncthreads();
        weighted.template add_product<KEYS>(weights, others);
    }

#pragma unroll
    for (int i = 0; i < DOWN; i++) {
        const float total = row_sum(sum[i]);
        const int query = first_query + down + i * F32_SIDE;
        if (across == 0 && query < sizes.sequence) {
            lse[static_cast<size_t>(place.batch_head) * sizes.sequence + query] = largest[i] + logf(total);
        }
        weighted.scale(i, sizes.factor / total);
    }
    weighted.store(rows_of_out(out, sizes, place.batch, place.head), first_query, 1.0f);
}

// At two blocks per multiprocessor, the masked kernels would spill registers.
#define ATTENTION_FORWARD_OF(NAME, SIZES, D)                                                     \
    extern "C" __global__ void __launch_bounds__(F32_THREADS, SIZES::masked ? 1 : F32_BLOCKS) \
        NAME##_f32_##D(float* out, float* lse, const float* qkv, SIZES sizes) {                  \
        attention_forward<D>(out, lse, qkv, sizes);                                              \
    }                                                                                            \
    REGISTER(NAME##_f32_##D)

#define ATTENTION_FORWARD(D) ATTENTION_FORWARD_OF(attention_forward, AttentionSizes, D)
#define ATTENTION_FORWARD_MASKED(D) ATTENTION_FORWARD_OF(attention_forward_masked, MaskedSizes, D)
