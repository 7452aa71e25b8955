// dq of attention in f32: a block takes a tile of one head's queries past the keys and values they see, computing the
// weights again from lse.
#include "attention_f32.cuh"

template <int D>
__device__ __forceinline__ void attention_query_gradients(float* dqkv, const float* dout, const float* qkv,
                                                          const float* lse, const float* delta,
                                                          const AttentionSizes& sizes) {
    constexpr int QUERIES = F32BackwardTiles<D>::kept, KEYS = F32BackwardTiles<D>::passing;
    constexpr int DOWN = QUERIES / F32_SIDE, ACROSS = KEYS / F32_SIDE;
    DYN_SHARED(float, queries);                        // [QUERIES, D]
    float* douts = queries + QUERIES * f32_stride(D);  // [QUERIES, D]
    float* keys = douts + QUERIES * f32_stride(D);     // [KEYS, D]
    float* values = keys + KEYS * f32_stride(D);       // [KEYS, D]
    float* dscores = values + KEYS * f32_stride(D);    // [QUERIES, KEYS]

    const Place place = Place::of_block(sizes, tiles_of(sizes.sequence, QUERIES), true);
    const Rows<const float> key_rows = part_of_qkv(qkv, sizes, place, 1);
    const Rows<const float> value_rows = part_of_qkv(qkv, sizes, place, 2);
    const int first_query = place.tile * QUERIES;
    const int seen = min(sizes.sequence, first_query + QUERIES);
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
    load_tile<D, QUERIES>(queries, part_of_qkv(qkv, sizes, place, 0), first_query);
    load_tile<D, QUERIES>(douts, part_of_out(dout, sizes, place), first_query);
    RowStatistics rows[DOWN];
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
        rows[i] = RowStatistics::of(lse, delta, sizes, place, first_query + down + i * F32_SIDE);
    }

    HeadRows<D, QUERIES> dqueries;
    for (int first_key = 0; first_key < seen; first_key += KEYS) {
        __syncthreads();
        load_tile<D, KEYS>(keys, key_rows, first_key);
        load_tile<D, KEYS>(values, value_rows, first_key);
        __syncthreads();
        float weight[DOWN][ACROSS], dscore[DOWN][ACROSS];
        multiply<D, QUERIES, KEYS>(weight, queries, keys);
        multiply<D, QUERIES, KEYS>(dscore, douts, values);
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                const bool hidden = first_key + across + j * F32_SIDE > first_query + down + i * F32_SIDE;
                weight[i][j] = hidden ? 0.0f : expf(weight[i][j] * sizes.scale - rows[i].lse);
                dscore[i][j] = weight[i][j] * (dscore[i][j] - rows[i].delta);
            }
        }
        keep_scores<QUERIES, KEYS>(dscores, dscore);
        __syncthreads();
        dqueries.template add_product<KEYS>(dscores, keys);
    }
    dqueries.store(part_of_qkv(dqkv, sizes, place, 0), first_query, sizes.scale);
}

#define ATTENTION_QUERY_GRADIENTS(D)                                                                    \
    extern "C" __global__ void __launch_bounds__(F32_THREADS, F32_BLOCKS)                               \
        attention_query_gradients_f32_##D(float* dqkv, const float* dout, const float* qkv,             \
                                          const float* lse, const float* delta, AttentionSizes sizes) { \
        attention_query_gradients<D>(dqkv, dout, qkv, lse, delta, sizes);                               \
    }                                                                                                   \
    REGISTER(attention_query_gradients_f32_##D)

ATTENTION_QUERY_GRADIENTS(32)
ATTENTION_QUERY_GRADIENTS(64)
ATTENTION_QUERY_GRADIENTS(96)
ATTENTION_QUERY_GRADIENTS(128)
ATTENTION_QUERY_GRADIENTS(256)
