// dk and dv of attention in f32: a block keeps a tile of one head's keys and values and loops over the queries that see
// them, of each query head that shares the key head, recomputing the weights from lse.
#pragma once
#include "attention_f32.cuh"

template <int D, class Sizes>
__device__ __forceinline__ void attention_key_gradients(float* dqkv, const float* dout, const float* qkv,
                                                        const float* lse, const float* delta,
                                                        const Sizes& sizes) {
    constexpr int KEYS = F32BackwardTiles<D>::kept, QUERIES = F32BackwardTiles<D>::passing;
    constexpr int DOWN = KEYS / F32_SIDE, ACROSS = QUERIES / F32_SIDE;
    DYN_SHARED(float, keys);                                // [KEYS, D]
    float* values = keys + KEYS * f32_stride(D);            // [KEYS, D]
    float* queries = values + KEYS * f32_stride(D);         // [QUERIES, D]
    float* douts = queries + QUERIES * f32_stride(D);       // [QUERIES, D]
    float* weights = douts + QUERIES * f32_stride(D);       // [KEYS, QUERIES]
    float* dscores = weights + KEYS * f32_stride(QUERIES);  // [KEYS, QUERIES]

    const Place place = Place::of_block(sizes, sizes.heads / sizes.shared, tiles_of(sizes.sequence, KEYS), false);
    const int first_key = place.tile * KEYS;
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
    load_tile<D, KEYS>(keys, keys_of(qkv, sizes, place.batch, place.head), first_key);
    load_tile<D, KEYS>(values, values_of(qkv, sizes, place.batch, place.head), first_key);

    HeadRows<D, KEYS> dkeys, dvalues;
    QueryTiles tiles(sizes, place, first_key, KEYS);
    for (; tiles.more(); tiles = tiles.next(QUERIES)) {
        const int first_query = tiles.first_query;
        __syncthreads();
        load_tile<D, QUERIES>(queries, queries_of(qkv, sizes, place.batch, tiles.head), first_query);
        load_tile<D, QUERIES>(douts, rows_of_out(dout, sizes, place.batch, tiles.head), first_query);
        __syncthreads();
        uint32_t kept = 0;
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept = kept_weights<false, KEYS, QUERIES>(sizes.chance, place.batch,
                                                          tiles.head * sizes.sequence + first_query, first_key);
            }
        }
        float weight[DOWN][ACROSS], dscore[DOWN][ACROSS];
        multiply<D, KEYS, QUERIES>(weight, keys, queries);
        multiply<D, KEYS, QUERIES>(dscore, values, douts);
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                drop<KEYS, QUERIES>(dscore, kept, sizes.factor);
            }
        }
        if (sizes.cap > 0.0f) {
            cap_products<KEYS, QUERIES>(weight, sizes.cap);
        }
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
            const int query = first_query + across + j * F32_SIDE;
            const RowStatistics row =
                RowStatistics::of(lse, delta, sizes, place.batch * sizes.heads + tiles.head, query);
#pragma unroll
            for (int i = 0; i < DOWN; i++) {
                const float slope = sizes.cap > 0.0f ? cap_slope(weight[i][j], sizes.cap) : 1.0f;
                const bool seen = sizes.sees(place.batch, query, first_key + down + i * F32_SIDE);
                weight[i][j] = seen ? expf(weight[i][j] * sizes.scale - row.lse) : 0.0f;
                dscore[i][j] = weight[i][j] * (dscore[i][j] - row.delta) * slope;
            }
        }
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                drop<KEYS, QUERIES>(weight, kept, sizes.factor);
            }
        }
        keep_scores<KEYS, QUERIES>(weights, weight);
        keep_scores<KEYS, QUERIES>(dscores, dscore);
        __syncthreads();
        dvalues.template add_product<QUERIES>(weights, douts);
        dkeys.template add_product<QUERIES>(dscores, queries);
    }
    dkeys.store(keys_of(dqkv, sizes, place.batch, place.head), first_key, sizes.scale);
    dvalues.store(values_of(dqkv, sizes, place.batch, place.head), first_key, 1.0f);
}

// At two blocks per multiprocessor, the masked kernel would spill registers at 64 channels.
#define ATTENTION_KEY_GRADIENTS_OF(NAME, SIZES, D)                                                          \
    extern "C" __global__ void __launch_bounds__(F32_THREADS, SIZES::masked && (D) == 64 ? 1 : F32_BLOCKS) \
        NAME##_f32_##D(float* dqkv, const float* dout, const float* qkv, const float* lse,                  \
                       const float* delta, SIZES sizes) {                                                   \
        attention_key_gradients<D>(dqkv, dout, qkv, lse, delta, sizes);                                     \
    }                                                                                                       \
    REGISTER(NAME##_f32_##D)

#define ATTENTION_KEY_GRADIENTS(D) ATTENTION_KEY_GRADIENTS_OF(attention_key_gradients, AttentionSizes, D)
#define ATTENTION_KEY_GRADIENTS_MASKED(D) ATTENTION_KEY_GRADIENTS_OF(attention_key_gradients_masked, MaskedSizes, D)
