// out = dropped(softmax(mask(cap(scale q k^T)))) v for 16-bit types, after FlashAttention-2 (Dao 2023): a block keeps a
// tile of one head's queries and loops over the tiles of keys and values, with a running maximum and sum for each query
// (online softmax).
#pragma once
#include "attention_tiles.cuh"

// Tile sizes by padded head dimension; launches/attention.rs repeats them. Limits: 255 registers a thread, 99 KiB of
// shared memory.
template <int D>
struct ForwardTiles {
    static constexpr int warps = 4;
    // Two bands per warp halve the shared memory reads per product; at 256 channels they do not fit the registers.
    static constexpr int bands = D <= 128 ? 2 : 1;
    static constexpr int keys = D <= 96 ? 64 : 32;
    // The dropout mask and the document mask take the registers of half a tile.
    static constexpr int masked_keys = D == 64 || D == 96 || D == 128 ? keys / 2 : keys;
    static constexpr bool kept = D <= 64;
    static constexpr int threads = warps * 32;
    // Minimum number of blocks per multiprocessor; 0 leaves it to the compiler. For three blocks, registers would
    // spill.
    static constexpr int blocks = D == 32 ? 2 : 0;
    static constexpr int warp_rows = bands * 16;
    static constexpr int queries = warps * warp_rows;
};

// Scores are unscaled products; `scale` turns them into base-2 exponents.
template <int D, int BANDS>
struct OnlineSoftmax {
    // Sums are rescaled only once a score exceeds the reference by this base-2 exponent: terms of up to 256 cost no
    // accuracy in f32 sums and fit 16-bit weights.
    static constexpr float slack = 8.0f;

    float reference[BANDS][2];
    float sum[BANDS][2];

    __device__ __forceinline__ OnlineSoftmax() {
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                reference[band][half] = LEAST_SCORE;
                sum[band][half] = 0.0f;
            }
        }
    }

    // Adds a tile of scores to the sums, and replaces the scores by weights relative to the reference.
    template <int TILES>
    __device__ __forceinline__ void add(float (&scores)[BANDS][TILES][4], float (&weighted)[BANDS][D / 8][4],
                                        float scale) {
        float largest[BANDS][2];
        bool passed = false;
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float value = -INFINITY;
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    value = fmaxf(value, fmaxf(scores[band][n][half * 2], scores[band][n][half * 2 + 1]));
                }
                largest[band][half] = row_max(value);
                passed |= (largest[band][half] - reference[band][half]) * scale > slack;
            }
        }
        if (__any_sync(~0u, passed)) {
            rescale(largest, weighted, scale);
        }
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float shift = -reference[band][half] * scale;
#pragma unroll
                for (int n = 0; n < TILES; n++) {
#pragma unroll
                    for (int i = half * 2; i < half * 2 + 2; i++) {
                        scores[band][n][i] = fast_exp2(fmaf(scores[band][n][i], scale, shift));
                        sum[band][half] += scores[band][n][i];
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void rescale(const float (&largest)[BANDS][2],
                                            float (&weighted)[BANDS][D / 8][4], float scale) {
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float next = fmaxf(reference[band][half], largest[band][half]);
                const float kept = fast_exp2((reference[band][half] - next) * scale);
                reference[band][half] = next;
                sum[band][half] *= kept;
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    weighted[band][n][half * 2] *= kept;
                    weighted[band][n][half * 2 + 1] *= kept;
                }
            }
        }
    }
};

template <class T, int D, class Sizes>
__device__ __forceinline__ void attention_forward(T* out, float* lse, const T* qkv,
                                                  const Sizes& sizes) {
    using Tiles = ForwardTiles<D>;
    constexpr int BANDS = Tiles::bands, KEYS = Sizes::masked ? Tiles::masked_keys : Tiles::keys, STAGE = KEYS * D;
    DYN_SHARED(T, queries);                  // [Tiles::queries, D]
    T* keys = queries + Tiles::queries * D;  // [2, KEYS, D]: two stages of the cp.async pipeline
    T* values = keys + 2 * STAGE;            // [2, KEYS, D]

    const Place place = Place::of_block(sizes, sizes.heads, tiles_of(sizes.sequence, Tiles::queries), true);
    const Rows<const T> key_rows = keys_of(qkv, sizes, place.batch, place.head / sizes.shared);
    const int values_after_keys = (sizes.width - sizes.channels) / 2;
    const int first_query = place.tile * Tiles::queries;
    const int last_query = first_query + Tiles::queries - 1;

    load_tile<D, Tiles::queries, Tiles::threads>(queries, queries_of(qkv, sizes, place.batch, place.head),
                                                 first_query);
    cp_commit();
    load_tile<D, KEYS, Tiles::threads>(keys, key_rows, sizes.first_taken(place.batch, first_query));
    load_tile<D, KEYS, Tiles::threads>(values, key_rows.after(values_after_keys), sizes.first_taken(place.batch, first_query));
    cp_commit();

    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * Tiles::warp_rows;
    const int warp_query = first_query + warp_row;
    Left<D, BANDS, Tiles::kept, T> left(queries + warp_row * D, lane);
    cp_wait(1);
    __syncthreads();
    left.keep();

    OnlineSoftmax<D, BANDS> softmax;
    float weighted[BANDS][D / 8][4] = {};
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
        // With document masks, the tiles before a warp's own documents are computed too: skipping them would spill
        // registers.
        if (first_key > warp_last + sizes.ahead ||
            (!Sizes::masked && last_key < sizes.first_seen(place.batch, warp_query))) {
            continue;
        }
        Kept<KEYS / 8> kept;
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept.template find_of_queries<BANDS>(sizes.chance, place.batch,
                                                     place.head * sizes.sequence + warp_query, first_key);
            }
        }
        float scores[BANDS][KEYS / 8][4];
        multiply<D, BANDS, KEYS>(scores, left, Blocks<D, T>::across(keys + stage * STAGE, lane));
        if (sizes.cap > 0.0f) {
            cap_products(scores, sizes.cap);
        }
        if (last_key >= sizes.after_seen(warp_query) ||
            first_key < sizes.AttentionSizes::first_seen(place.batch, warp_last)) {
            hide_unseen<true>(scores, sizes, warp_query, first_key);
        }
        if constexpr (Sizes::masked) {
            hide_other_documents<true>(scores, sizes, place.batch, warp_query, first_key);
        }
        if (sizes.ahead > 0 && last_key >= sizes.sequence) {
            hide_absent(scores, sizes.sequence, first_key);
        }
        softmax.add(scores, weighted, sizes.exponent_scale);
        if constexpr (Sizes::masked) {
            if (sizes.chance.drops()) {
                kept.drop(scores, 1.0f);
            }
        }
        uint32_t weights[BANDS][KEYS / 16][4];
        round_to<T>(weights, scores);
        accumulate<D, D>(weighted, weights, Blocks<D, T>::down(values + stage * STAGE, lane), 0);
    }

#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float sum = row_sum(softmax.sum[band][half]);
            const int query = warp_query + band * 16 + half * 8 + lane / 4;
            if (lane % 4 == 0 && query < sizes.sequence) {
                lse[static_cast<size_t>(place.batch_head) * sizes.sequence + query] =
                    softmax.reference[band][half] * sizes.scale + logf(sum);
            }
            const float share = sizes.factor / sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                weighted[band][n][half * 2] *= share;
                weighted[band][n][half * 2 + 1] *= share;
            }
        }
    }
    store_rows<D, D>(rows_of_out(out, sizes, place.batch, place.head), warp_query, 0, queries + warp_row * D,
                     weighted, 1.0f);
}

#define ATTENTION_FORWARD_OF(NAME, SIZES, T, D)                                                     \
    extern "C" __global__ void __launch_bounds__(ForwardTiles<D>::threads, ForwardTiles<D>::blocks) \
        NAME##_##T##_##D(T* out, float* lse, const T* qkv, SIZES sizes) {                           \
        attention_forward<T, D>(out, lse, qkv, sizes);                                              \
    }                                                                                               \
    REGISTER(NAME##_##T##_##D)

#define ATTENTION_FORWARD(T, D) ATTENTION_FORWARD_OF(attention_forward, AttentionSizes, T, D)
#define ATTENTION_FORWARD_MASKED(T, D) ATTENTION_FORWARD_OF(attention_forward_masked, MaskedSizes, T, D)
