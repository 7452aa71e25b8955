// dq of attention for 16-bit types: a block keeps a tile of one head's queries and loops over the keys and values that
// they see, recomputing the weights from lse.
#pragma once
#include "attention_tiles.cuh"

// Tile sizes by padded head dimension; launches/attention.rs repeats them. Limits: 255 registers a thread, 99 KiB of
// shared memory.
template <int D>
struct QueryGradientTiles {
    static constexpr int warps = D == 128 ? 8 : 4;
    static constexpr int bands = D <= 96 ? 2 : 1;
    static constexpr int keys = D <= 128 ? 32 : 16;
    static constexpr bool kept = D <= 64 || D == 128;
    static constexpr int threads = warps * 32;
    // Minimum number of blocks per multiprocessor; 0 leaves it to the compiler. For three blocks, registers would
    // spill.
    static constexpr int blocks = D == 32 ? 2 : 0;
    static constexpr int warp_rows = bands * 16;
    static constexpr int queries = warps * warp_rows;
};

template <class T, int D, class Sizes>
__device__ __forceinline__ void attention_query_gradients(T* dqkv, const T* dout, const T* qkv,
                                                          const float* lse, const float* delta,
                                                          const Sizes& sizes) {
    using Tiles = QueryGradientTiles<D>;
    constexpr int BANDS = Tiles::bands, KEYS = Tiles::keys, STAGE = KEYS * D;
    // The dropout mask and the document mask need the registers of one left operand at 64 channels.
    constexpr bool KEPT_DOUTS = Tiles::kept && !(Sizes::masked && D == 64);
    DYN_SHARED(T, queries);                   // [Tiles::queries, D]
    T* douts = queries + Tiles::queries * D;  // [Tiles::queries, D]
    T* keys = douts + Tiles::queries * D;     // [2, KEYS, D]: two stages of the cp.async pipeline
    T* values = keys + 2 * STAGE;             // [2, KEYS, D]

    const Place place = Place::of_block(sizes, sizes.heads, tiles_of(sizes.sequence, Tiles::queries), true);
    const Rows<const T> key_rows = keys_of(qkv, sizes, place.batch, place.head / sizes.shared);
    const int values_after_keys = (sizes.width - sizes.channels) / 2;
    const int first_query = place.tile * Tiles::queries;
    const int last_query = first_query + Tiles::queries - 1;

    load_tile<D, Tiles::queries, Tiles::threads>(queries, queries_of(qkv, sizes, place.batch, place.head),
                                                 first_query);
    load_tile<D, Tiles::queries, Tiles::threads>(douts, rows_of_out(dout, sizes, place.batch, place.head),
                                                 first_query);
    cp_commit();
    load_tile<D, KEYS, Tiles::threads>(keys, key_rows, sizes.first_taken(place.batch, first_query));
    load_tile<D, KEYS, Tiles::threads>(values, key_rows.after(values_after_keys), sizes.first_taken(place.batch, first_query));
    cp_commit();

    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * Tiles::warp_rows;
    const int warp_query = first_query + warp_row;
    float exponents[BANDS][2], deltas[BANDS][2];
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = warp_query + band * 16 + half * 8 + lane / 4;
            const RowStatistics row = RowStatistics::of(lse, delta, sizes, place.batch_head, query);
            exponents[band][half] = row.lse * LOG2_E;
            deltas[band][half] = row.delta;
        }
    }
    Left<D, BANDS, Tiles::kept, T> query_left(queries + warp_row * D, lane);
    Left<D, BANDS, KEPT_DOUTS, T> dout_left(douts + warp_row * D, lane);
    cp_wait(1);
    __syncthreads();
    query_left.keep();
    dout_left.keep();

    float dqueries[BANDS][D / 8][4] = {};
    for (int first_key = sizes.first_taken(place.batch, first_query), stage = 0; first_key < sizes.after_seen(last_query);
         first_key += KEYS, stage ^= 1) {
        cp_wait(0);
        __syncthreads();
        if (first_key + KEYS < sizes.after_seen(last_query)) {
            load_tile<D, KEYS, Tiles::threads>(keys + (stage ^ 1) * STAGE, key_rows, first_key + KEYS);
            load_tile<D, KEYS, Tiles::threads>(values + (stage ^ 1) * STAGE, key_rows.after(values_after_keys), first_key + KEYS);
            cp_commit();
        }
        const int last_key = first_key + KEYS - 1, warp_last = warp_query + Tiles::warp_rows - 1;
        // Tiles before the warp's window are computed too: one more condition would spill registers.
        if (first_key > warp_last + sizes.ahead) {
            continue;
        }
        Kept<KEYS / 8> kept;
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept.template find_of_queries<BANDS>(sizes.chance, place.batch,
                                                     place.head * sizes.sequence + warp_query, first_key);
            }
        }
        float weights[BANDS][KEYS / 8][4], dscores[BANDS][KEYS / 8][4];
        multiply<D, BANDS, KEYS>(weights, query_left, Blocks<D, T>::across(keys + stage * STAGE, lane));
        multiply<D, BANDS, KEYS>(dscores, dout_left, Blocks<D, T>::across(values + stage * STAGE, lane));
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept.drop(dscores, sizes.factor);
            }
        }
        if (sizes.cap > 0.0f) {
            cap_products(weights, sizes.cap);
        }
        if (last_key >= sizes.after_seen(warp_query) ||
            first_key < sizes.AttentionSizes::first_seen(place.batch, warp_last)) {
            hide_unseen<true>(weights, sizes, warp_query, first_key);
        }
        if constexpr (Sizes::masked) {
            hide_other_documents<true>(weights, sizes, place.batch, warp_query, first_key);
        }
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float weight =
                        fast_exp2(fmaf(weights[band][n][i], sizes.exponent_scale, -exponents[band][i / 2]));
                    dscores[band][n][i] = weight * (dscores[band][n][i] - deltas[band][i / 2]);
                    if (sizes.cap > 0.0f && weight > 0.0f) {
                        dscores[band][n][i] *= cap_slope(weights[band][n][i], sizes.cap);
                    }
                }
            }
        }
        uint32_t rounded[BANDS][KEYS / 16][4];
        round_to<T>(rounded, dscores);
        accumulate<D, D>(dqueries, rounded, Blocks<D, T>::down(keys + stage * STAGE, lane), 0);
    }

    store_rows<D, D>(queries_of(dqkv, sizes, place.batch, place.head), warp_query, 0, queries + warp_row * D,
                     dqueries, sizes.scale);
}

#define ATTENTION_QUERY_GRADIENTS_OF(NAME, SIZES, T, D)                                                         \
    extern "C" __global__ void __launch_bounds__(QueryGradientTiles<D>::threads, QueryGradientTiles<D>::blocks) \
        NAME##_##T##_##D(T* dqkv, const T* dout, const T* qkv, const float* lse,                                \
                                            const float* delta, SIZES sizes) {                                  \
        attention_query_gradients<T, D>(dqkv, dout, qkv, lse, delta, sizes);                                    \
    }                                                                                                           \
    REGISTER(NAME##_##T##_##D)

#define ATTENTION_QUERY_GRADIENTS(T, D) ATTENTION_QUERY_GRADIENTS_OF(attention_query_gradients, AttentionSizes, T, D)
#define ATTENTION_QUERY_GRADIENTS_MASKED(T, D) ATTENTION_QUERY_GRADIENTS_OF(attention_query_gradients_masked, MaskedSizes, T, D)
