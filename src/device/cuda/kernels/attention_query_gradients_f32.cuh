// dq of attention in f32: a block keeps a tile of one head's queries and loops over the keys and values that they see,
// recomputing the weights from lse.
#pragma once
#include "attention_f32.cuh"

template <int D, class Sizes>
__device__ __forceinline__ void attention_query_gradients(float* dqkv, const float* dout, const float* qkv,
                                                          const float* lse, const float* delta,
                                                          const Sizes& sizes) {
    constexpr int QUERIES = F32BackwardTiles<D>::kept, KEYS = F32BackwardTiles<D>::passing;
    constexpr int DOWN = QUERIES / F32_SIDE, ACROSS = KEYS / F32_SIDE;
    DYN_SHARED(float, queries);                        // [QUERIES, D]
    float* douts = queries + QUERIES * f32_stride(D);  // [QUERIES, D]
    float* keys = douts + QUERIES * f32_stride(D);     // [KEYS, D]
    float* values = keys + KEYS * f32_stride(D);       // [KEYS, D]
    float* dscores = values + KEYS * f32_stride(D);    // [QUERIES, KEYS]

    const Place place = Place::of_block(sizes, sizes.heads, tiles_of(sizes.sequence, QUERIES), true);
    const Rows<const float> key_rows = keys_of(qkv, sizes, place.batch, place.head / sizes.shared);
    const Rows<const float> value_rows = values_of(qkv, sizes, place.batch, place.head / sizes.shared);
    const int first_query = place.tile * QUERIES;
    const int seen = sizes.after_seen(first_query + QUERIES - 1);
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
    load_tile<D, QUERIES>(queries, queries_of(qkv, sizes, place.batch, place.head), first_query);
    load_tile<D, QUERIES>(douts, rows_of_out(dout, sizes, place.batch, place.head), first_query);
    RowStatistics rows[DOWN];
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
        rows[i] = RowStatistics::of(lse, delta, sizes, place.batch_head, first_query + down + i * F32_SIDE);
    }

    HeadRows<D, QUERIES> dqueries;
    for (int first_key = sizes.first_taken(place.batch, first_query); first_key < seen; first_key += KEYS) {
        __syncthreads();
        load_tile<D, KEYS>(keys, key_rows, first_key);
        load_tile<D, KEYS>(values, value_rows, first_key);
        __syncthreads();
        uint32_t kept = 0;
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept = kept_weights<true, QUERIES, KEYS>(sizes.chance, place.batch,
                                                         place.head * sizes.sequence + first_query, first_key);
            }
        }
        float weight[DOWN][ACROSS], dscore[DOWN][ACROSS];
        multiply<D, QUERIES, KEYS>(weight, queries, keys);
        multiply<D, QUERIES, KEYS>(dscore, douts, values);
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                drop<QUERIES, KEYS>(dscore, kept, sizes.factor);
            }
        }
        if (sizes.cap > 0.0f) {
            cap_products<QUERIES, KEYS>(weight, sizes.cap);
        }
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                const int query = first_query + down + i * F32_SIDE, key = first_key + across + j * F32_SIDE;
                const float slope = sizes.cap > 0.0f ? cap_slope(weight[i][j], sizes.cap) : 1.0f;
                weight[i][j] = sizes.sees(place.batch, query, key) ? expf(weight[i][j] * sizes.scale - rows[i].lse) : 0.0f;
                dscore[i][j] = weight[i][j] * (dscore[i][j] - rows[i].delta) * slope;
            }
        }
        keep_scores<QUERIES, KEYS>(dscores, dscore);
        __syncthreads();
        dqueries.template add_product<KEYS>(dscores, keys);
    }
    dqueries.store(queries_of(dqkv, sizes, place.batch, place.head), first_query, sizes.scale);
}

#define ATTENTION_QUERY_GRADIENTS_OF(NAME, SIZES, D)                                           \
    extern "C" __global__ void __launch_bounds__(F32_THREADS, F32_BLOCKS)                      \
        NAME##_f32_##D(float* dqkv, const float* dout, const float* qkv,                       \
                                          const float* lse, const float* delta, SIZES sizes) { \
        attention_query_gradients<D>(dqkv, dout, qkv, lse, delta, sizes);                      \
    }                                                                                          \
    REGISTER(NAME##_f32_##D)

#define ATTENTION_QUERY_GRADIENTS(D) ATTENTION_QUERY_GRADIENTS_OF(attention_query_gradients, AttentionSizes, D)
#define ATTENTION_QUERY_GRADIENTS_MASKED(D) ATTENTION_QUERY_GRADIENTS_OF(attention_query_gradients_masked, MaskedSizes, D)
