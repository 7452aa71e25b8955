// dk and dv of attention in f32: a block takes a tile of one head's keys and values past the queries that see them,
// computing the weights again from lse.
#include "attention_f32.cuh"

template <int D>
__device__ __forceinline__ void attention_key_gradients(float* dqkv, const float* dout, const float* qkv,
                                                        const float* lse, const float* delta,
                                                        const AttentionSizes& sizes) {
    constexpr int KEYS = F32BackwardTiles<D>::kept, QUERIES = F32BackwardTiles<D>::passing;
    constexpr int DOWN = KEYS / F32_SIDE, ACROSS = QUERIES / F32_SIDE;
    DYN_SHARED(float, keys);                                // [KEYS, D]
    float* values = keys + KEYS * f32_stride(D);            // [KEYS, D]
    float* queries = values + KEYS * f32_stride(D);         // [QUERIES, D]
    float* douts = queries + QUERIES * f32_stride(D);       // [QUERIES, D]
    float* weights = douts + QUERIES * f32_stride(D);       // [KEYS, QUERIES]
    float* dscores = weights + KEYS * f32_stride(QUERIES);  // [KEYS, QUERIES]

    const Place place = Place::of_block(sizes, tiles_of(sizes.sequence, KEYS), false);
    const Rows<const float> query_rows = part_of_qkv(qkv, sizes, place, 0);
    const Rows<const float> dout_rows = part_of_out(dout, sizes, place);
    const int first_key = place.tile * KEYS;
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
    load_tile<D, KEYS>(keys, part_of_qkv(qkv, sizes, place, 1), first_key);
    load_tile<D, KEYS>(values, part_of_qkv(qkv, sizes, place, 2), first_key);

    HeadRows<D, KEYS> dkeys, dvalues;
    for (int first_query = first_key; first_query < sizes.sequence; first_query += QUERIES) {
        __syncthreads();
        load_tile<D, QUERIES>(queries, query_rows, first_query);
        load_tile<D, QUERIES>(douts, dout_rows, first_query);
        __syncthreads();
        float weight[DOWN][ACROSS], dscore[DOWN][ACROSS];
        multiply<D, KEYS, QUERIES>(weight, keys, queries);
        multiply<D, KEYS, QUERIES>(dscore, values, douts);
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
            const int query = first_query + across + j * F32_SIDE;
            const RowStatistics row = RowStatistics::of(lse, delta, sizes, place, query);
#pragma unroll
            for (int i = 0; i < DOWN; i++) {
                const bool hidden = first_key + down + i * F32_SIDE > query;
                weight[i][j] = hidden ? 0.0f : expf(weight[i][j] * sizes.scale - row.lse);
                dscore[i][j] = weight[i][j] * (dscore[i][j] - row.delta);
            }
        }
        keep_scores<KEYS, QUERIES>(weights, weight);
        keep_scores<KEYS, QUERIES>(dscores, dscore);
        __syncthreads();
        dvalues.template add_product<QUERIES>(weights, douts);
        dkeys.template add_product<QUERIES>(dscores, queries);
    }
    dkeys.store(part_of_qkv(dqkv, sizes, place, 1), first_key, sizes.scale);
    dvalues.store(part_of_qkv(dqkv, sizes, place, 2), first_key, 1.0f);
}

#define ATTENTION_KEY_GRADIENTS(D)                                                                          \
    extern "C" __global__ void __launch_bounds__(F32_THREADS, F32_BLOCKS)                                   \
        attention_key_gradients_f32_##D(float* dqkv, const float* dout, const float* qkv, const float* lse, \
                                        const float* delta, AttentionSizes sizes) {                         \
        attention_key_gradients<D>(dqkv, dout, qkv, lse, delta, sizes);                                     \
    }                                                                                                       \
    REGISTER(attention_key_gradients_f32_##D)

ATTENTION_KEY_GRADIENTS(32)
ATTENTION_KEY_GRADIENTS(64)
ATTENTION_KEY_GRADIENTS(96)
ATTENTION_KEY_GRADIENTS(128)
ATTENTION_KEY_GRADIENTS(256)
