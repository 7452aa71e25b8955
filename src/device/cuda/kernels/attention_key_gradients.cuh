// dk and dv of attention for 16-bit types: a block keeps a tile of one head's keys and values and loops over the
// queries that see them, of each query head that shares the key head, recomputing the weights from lse. Products are
// transposed, keys by queries, so that weights and their gradients pass from one product to the next in registers.
#pragma once
#include "attention_tiles.cuh"

// Tile sizes by padded head dimension; launches/attention.rs repeats them. Limits: 255 registers a thread, 99 KiB of
// shared memory.
template <int D>
struct KeyGradientTiles {
    static constexpr int warps = D == 96 || D == 128 ? 8 : 4;
    static constexpr int bands = D <= 64 ? 2 : 1;
    static constexpr int queries = D <= 128 ? 32 : 16;
    // Whether the fragments of the left operands stay in registers.
    static constexpr bool kept = D == 32 || D == 96;
    // Columns of dk and dv that a block computes: two blocks share a tile where one block's registers cannot hold all.
    static constexpr int columns = D <= 128 ? D : 128;
    static constexpr int threads = warps * 32;
    static constexpr int warp_rows = bands * 16;
    static constexpr int keys = warps * warp_rows;
};

// Multiplies the gradients of the scores by the derivative of the softcap. The capped products are computed from the
// weights and the exponents of the queries; a weight of zero has a gradient of zero.
template <int BANDS, int TILES>
__device__ __forceinline__ void multiply_by_slopes(float (&dscores)[BANDS][TILES][4],
                                                   const float (&weights)[BANDS][TILES][4], const float* exponents,
                                                   const AttentionSizes& sizes) {
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const float2 exponent = *reinterpret_cast<const float2*>(exponents + n * 8);
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float weight = weights[band][n][i];
                const float within =
                    (log2f(weight) + (i % 2 == 0 ? exponent.x : exponent.y)) / sizes.exponent_scale;
                dscores[band][n][i] *= weight > 0.0f ? cap_slope(within, sizes.cap) : 0.0f;
            }
        }
    }
}

template <class T, int D, class Sizes>
__device__ __forceinline__ void attention_key_gradients(T* dqkv, const T* dout, const T* qkv,
                                                        const float* lse, const float* delta,
                                                        const Sizes& sizes) {
    using Tiles = KeyGradientTiles<D>;
    constexpr int BANDS = Tiles::bands, QUERIES = Tiles::queries, STAGE = QUERIES * D,
                  COLUMNS = Tiles::columns;
    // The document mask needs the registers that the left operands would take at 96 channels.
    constexpr bool KEPT = Tiles::kept && !(Sizes::masked && D == 96);
    DYN_SHARED(T, keys);                    // [Tiles::keys, D]
    T* values = keys + Tiles::keys * D;     // [Tiles::keys, D]
    T* queries = values + Tiles::keys * D;  // [2, QUERIES, D]: two stages of the cp.async pipeline
    T* douts = queries + 2 * STAGE;         // [2, QUERIES, D]
    // [2, 2, QUERIES]: exponents, then deltas.
    float* statistics = reinterpret_cast<float*>(douts + 2 * STAGE);

    const int key_heads = sizes.heads / sizes.shared;
    const Place place = Place::of_block(sizes, key_heads, tiles_of(sizes.sequence, Tiles::keys), false);
    const int first_key = place.tile * Tiles::keys, first_column = blockIdx.y * COLUMNS;
    const int batch_heads = place.batch * sizes.heads;
    QueryTiles tiles(sizes, place, first_key, Tiles::keys);

    load_tile<D, Tiles::keys, Tiles::threads>(keys, keys_of(qkv, sizes, place.batch, place.head), first_key);
    load_tile<D, Tiles::keys, Tiles::threads>(values, values_of(qkv, sizes, place.batch, place.head), first_key);
    cp_commit();
    load_tile<D, QUERIES, Tiles::threads>(queries, queries_of(qkv, sizes, place.batch, tiles.head),
                                          tiles.first_query);
    load_tile<D, QUERIES, Tiles::threads>(douts, rows_of_out(dout, sizes, place.batch, tiles.head),
                                          tiles.first_query);
    cp_commit();
    // Each of the first 2 QUERIES threads prefetches one of the next statistics into a register while the products are
    // computed.
    const int carried_query = threadIdx.x % QUERIES;
    const bool carries = threadIdx.x < 2 * QUERIES, carries_delta = threadIdx.x >= QUERIES;
    float carried = 0.0f;
    if (carries) {
        const RowStatistics row =
            RowStatistics::of(lse, delta, sizes, batch_heads + tiles.head, tiles.first_query + carried_query);
        statistics[threadIdx.x] = carries_delta ? row.delta : row.lse * LOG2_E;
    }

    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * Tiles::warp_rows;
    const int warp_key = first_key + warp_row;
    Left<D, BANDS, KEPT, T> key_left(keys + warp_row * D, lane);
    Left<D, BANDS, KEPT, T> value_left(values + warp_row * D, lane);
    cp_wait(1);
    __syncthreads();
    key_left.keep();
    value_left.keep();

    float dkeys[BANDS][COLUMNS / 8][4] = {}, dvalues[BANDS][COLUMNS / 8][4] = {};
    for (int stage = 0; tiles.more(); stage ^= 1) {
        const int first_query = tiles.first_query, last_query = first_query + QUERIES - 1;
        const int last_key = warp_key + Tiles::warp_rows - 1;
        Kept<QUERIES / 8> kept;
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops() && last_query + sizes.ahead >= warp_key) {
                kept.template find_of_keys<BANDS>(sizes.chance, place.batch,
                                                  tiles.head * sizes.sequence + first_query, warp_key);
            }
        }
        tiles = tiles.next(QUERIES);
        const bool more = tiles.more();
        cp_wait(0);
        __syncthreads();
        if (more) {
            load_tile<D, QUERIES, Tiles::threads>(queries + (stage ^ 1) * STAGE,
                                                  queries_of(qkv, sizes, place.batch, tiles.head),
                                                  tiles.first_query);
            load_tile<D, QUERIES, Tiles::threads>(douts + (stage ^ 1) * STAGE,
                                                  rows_of_out(dout, sizes, place.batch, tiles.head),
                                                  tiles.first_query);
            cp_commit();
            if (carries) {
                const RowStatistics row = RowStatistics::of(lse, delta, sizes, batch_heads + tiles.head,
                                                            tiles.first_query + carried_query);
                carried = carries_delta ? row.delta : row.lse * LOG2_E;
            }
        }
        if (last_query + sizes.ahead >= warp_key && last_key >= sizes.first_seen(place.batch, first_query)) {
            const float* exponents = statistics + stage * 2 * QUERIES + lane % 4 * 2;
            const float* deltas = exponents + QUERIES;
            float weights[BANDS][QUERIES / 8][4], dscores[BANDS][QUERIES / 8][4];
            multiply<D, BANDS, QUERIES>(weights, key_left,
                                        Blocks<D, T>::across(queries + stage * STAGE, lane));
            if (sizes.cap > 0.0f) {
                cap_products(weights, sizes.cap);
            }
            if (last_key > first_query + sizes.ahead ||
                warp_key < sizes.AttentionSizes::first_seen(place.batch, last_query)) {
                hide_unseen<false>(weights, sizes, warp_key, first_query);
            }
            if constexpr (Sizes::masked) {
                hide_other_documents<false>(weights, sizes, place.batch, warp_key, first_query);
            }
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const float2 exponent = *reinterpret_cast<const float2*>(exponents + n * 8);
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        weights[band][n][i] = fast_exp2(fmaf(weights[band][n][i], sizes.exponent_scale,
                                                             i % 2 == 0 ? -exponent.x : -exponent.y));
                    }
                }
            }
            uint32_t rounded[BANDS][QUERIES / 16][4];
            round_to<T>(rounded, weights);
            if constexpr (Sizes::masked) {
                if (sizes.chance.drops()) {
                    kept.drop(rounded);
                }
            }
            accumulate<D, COLUMNS>(dvalues, rounded, Blocks<D, T>::down(douts + stage * STAGE, lane),
                                   first_column);

            multiply<D, BANDS, QUERIES>(dscores, value_left,
                                        Blocks<D, T>::across(douts + stage * STAGE, lane));
            if constexpr (Sizes::masked) {
                if (sizes.chance.drops()) {
                    kept.drop(dscores, sizes.factor);
                }
            }
#pragma unroll
            for (int n = 0; n < QUERIES / 8; n++) {
                const float2 delta = *reinterpret_cast<const float2*>(deltas + n * 8);
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        dscores[band][n][i] =
                            weights[band][n][i] * (dscores[band][n][i] - (i % 2 == 0 ? delta.x : delta.y));
                    }
                }
            }
            if (sizes.cap > 0.0f) {
                multiply_by_slopes(dscores, weights, exponents, sizes);
            }
            round_to<T>(rounded, dscores);
            accumulate<D, COLUMNS>(dkeys, rounded, Blocks<D, T>::down(queries + stage * STAGE, lane),
                                   first_column);
        }
        if (more && carries) {
            statistics[(stage ^ 1) * 2 * QUERIES + threadIdx.x] = carried;
        }
    }

    store_rows<D, COLUMNS>(keys_of(dqkv, sizes, place.batch, place.head), warp_key, first_column,
                           keys + warp_row * D, dkeys, sizes.scale);
    store_rows<D, COLUMNS>(values_of(dqkv, sizes, place.batch, place.head), warp_key, first_column,
                           values + warp_row * D, dvalues, sizes.factor);
}

#define ATTENTION_KEY_GRADIENTS_OF(NAME, SIZES, T, D)                            \
    extern "C" __global__ void __launch_bounds__(KeyGradientTiles<D>::threads)   \
        NAME##_##T##_##D(T* dqkv, const T* dout, const T* qkv, const float* lse, \
                                          const float* delta, SIZES sizes) {     \
        attention_key_gradients<T, D>(dqkv, dout, qkv, lse, delta, sizes);       \
    }                                                                            \
    REGISTER(NAME##_##T##_##D)

#define ATTENTION_KEY_GRADIENTS(T, D) ATTENTION_KEY_GRADIENTS_OF(attention_key_gradients, AttentionSizes, T, D)
#define ATTENTION_KEY_GRADIENTS_MASKED(T, D) ATTENTION_KEY_GRADIENTS_OF(attention_key_gradients_masked, MaskedSizes, T, D)
