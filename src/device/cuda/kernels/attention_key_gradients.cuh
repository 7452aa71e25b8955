// dk and dv of attention for 16-bit types: a block takes a tile of one head's keys and values past the queries that
// see them, computing the weights again from lse. Products are transposed, keys by queries, so that weights and
// their gradients go from one product to the next in registers.
#pragma once
#include "attention_tiles.cuh"

// Tile sizes by padded head dimension; launches/attention.rs repeats them. Limits: 255 registers, 99 KiB.
template <int D>
struct KeyGradientTiles {
    static constexpr int warps = D == 96 || D == 128 ? 8 : 4;
    static constexpr int bands = D <= 64 ? 2 : 1;
    static constexpr int queries = D <= 128 ? 32 : 16;
    // Whether left operands stay in registers.
    static constexpr bool kept = D == 32 || D == 96;
    // Columns of dk and dv that a block computes: two blocks share a tile where registers do not hold all.
    static constexpr int columns = D <= 128 ? D : 128;
    static constexpr int threads = warps * 32;
    static constexpr int warp_rows = bands * 16;
    static constexpr int keys = warps * warp_rows;
};

template <class T, int D>
__device__ __forceinline__ void attention_key_gradients(T* dqkv, const T* dout, const T* qkv,
                                                        const float* lse, const float* delta,
                                                        const AttentionSizes& sizes) {
    using Tiles = KeyGradientTiles<D>;
    constexpr int BANDS = Tiles::bands, QUERIES = Tiles::queries, STAGE = QUERIES * D,
                  COLUMNS = Tiles::columns;
    DYN_SHARED(T, keys);                    // [Tiles::keys, D]
    T* values = keys + Tiles::keys * D;     // [Tiles::keys, D]
    T* queries = values + Tiles::keys * D;  // [2, QUERIES, D], of which one is filled while the other is used
    T* douts = queries + 2 * STAGE;         // [2, QUERIES, D]
    // [2, 2, QUERIES]: exponents, then deltas.
    float* statistics = reinterpret_cast<float*>(douts + 2 * STAGE);

    const Place place = Place::of_block(sizes, tiles_of(sizes.sequence, Tiles::keys), false);
    const Rows<const T> query_rows = part_of_qkv(qkv, sizes, place, 0);
    const Rows<const T> dout_rows = part_of_out(dout, sizes, place);
    const int first_key = place.tile * Tiles::keys, first_column = blockIdx.y * COLUMNS;

    load_tile<D, Tiles::keys, Tiles::threads>(keys, part_of_qkv(qkv, sizes, place, 1), first_key);
    load_tile<D, Tiles::keys, Tiles::threads>(values, part_of_qkv(qkv, sizes, place, 2), first_key);
    cp_commit();
    load_tile<D, QUERIES, Tiles::threads>(queries, query_rows, first_key);
    load_tile<D, QUERIES, Tiles::threads>(douts, dout_rows, first_key);
    cp_commit();
    // Threads of the first warps carry one number each of the next statistics through the products.
    const int carried_query = threadIdx.x % QUERIES;
    const bool carries = threadIdx.x < 2 * QUERIES, carries_delta = threadIdx.x >= QUERIES;
    float carried = 0.0f;
    if (carries) {
        const RowStatistics row = RowStatistics::of(lse, delta, sizes, place, first_key + carried_query);
        statistics[threadIdx.x] = carries_delta ? row.delta : row.lse * LOG2_E;
    }

    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * Tiles::warp_rows;
    const int warp_key = first_key + warp_row;
    Left<D, BANDS, Tiles::kept, T> key_left(keys + warp_row * D, lane);
    Left<D, BANDS, Tiles::kept, T> value_left(values + warp_row * D, lane);
    cp_wait(1);
    __syncthreads();
    key_left.keep();
    value_left.keep();

    float dkeys[BANDS][COLUMNS / 8][4] = {}, dvalues[BANDS][COLUMNS / 8][4] = {};
    for (int first_query = first_key; first_query < sizes.sequence; first_query += QUERIES) {
        const int stage = (first_query - first_key) / QUERIES % 2;
        const bool more = first_query + QUERIES < sizes.sequence;
        cp_wait(0);
        __syncthreads();
        if (more) {
            load_tile<D, QUERIES, Tiles::threads>(queries + (stage ^ 1) * STAGE, query_rows,
                                                  first_query + QUERIES);
            load_tile<D, QUERIES, Tiles::threads>(douts + (stage ^ 1) * STAGE, dout_rows,
                                                  first_query + QUERIES);
            cp_commit();
            if (carries) {
                const RowStatistics row =
                    RowStatistics::of(lse, delta, sizes, place, first_query + QUERIES + carried_query);
                carried = carries_delta ? row.delta : row.lse * LOG2_E;
            }
        }
        if (first_query + QUERIES - 1 >= warp_key) {
            const float* exponents = statistics + stage * 2 * QUERIES + lane % 4 * 2;
            const float* deltas = exponents + QUERIES;
            float weights[BANDS][QUERIES / 8][4], dscores[BANDS][QUERIES / 8][4];
            multiply<D, BANDS, QUERIES>(weights, key_left,
                                        Blocks<D, T>::across(queries + stage * STAGE, lane));
            if (first_query < warp_key + Tiles::warp_rows - 1) {
                hide_later_keys<false>(weights, warp_key, first_query);
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
            accumulate<D, COLUMNS>(dvalues, rounded, Blocks<D, T>::down(douts + stage * STAGE, lane),
                                   first_column);

            multiply<D, BANDS, QUERIES>(dscores, value_left,
                                        Blocks<D, T>::across(douts + stage * STAGE, lane));
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
            round_to<T>(rounded, dscores);
            accumulate<D, COLUMNS>(dkeys, rounded, Blocks<D, T>::down(queries + stage * STAGE, lane),
                                   first_column);
        }
        if (more && carries) {
            statistics[(stage ^ 1) * 2 * QUERIES + threadIdx.x] = carried;
        }
    }

    store_rows<D, COLUMNS>(part_of_qkv(dqkv, sizes, place, 1), warp_key, first_column, keys + warp_row * D,
                           dkeys, sizes.scale);
    store_rows<D, COLUMNS>(part_of_qkv(dqkv, sizes, place, 2), warp_key, first_column, values + warp_row * D,
                           dvalues, 1.0f);
}

#define ATTENTION_KEY_GRADIENTS(T, D)                                                             \
    extern "C" __global__ void __launch_bounds__(KeyGradientTiles<D>::threads)                    \
        attention_key_gradients_##T##_##D(T* dqkv, const T* dout, const T* qkv, const float* lse, \
                                          const float* delta, AttentionSizes sizes) {             \
        attention_key_gradients<T, D>(dqkv, dout, qkv, lse, delta, sizes);                        \
    }                                                                                             \
    REGISTER(attention_key_gradients_##T##_##D)
