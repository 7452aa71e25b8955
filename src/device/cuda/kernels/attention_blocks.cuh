// Shared by all attention kernels: the head and tile of a block, the addresses of a head's rows, and the mask (which
// keys a query sees).
//
// B batch, T sequence, H query heads, G key/value heads, D channels of a head. Each key/value head is shared by H / G
// consecutive query heads (grouped-query attention). qkv is [B, T, (H + 2G) D]: queries, keys and values side by side,
// each with its heads side by side; out and dout are [B, T, H D], lse and delta [B, H, T].
#pragma once
#include "chance.cuh"

struct AttentionSizes {
    int batch;
    int heads;
    // H / G.
    int shared;
    int sequence;
    // The true D; kernels pad it.
    int head;
    // Channels of a row of out (H D), and of a row of qkv.
    int channels;
    int width;
    // Heads whose blocks are started together: enough to fill the device, few enough for their keys and values to stay
    // in the cache.
    int group;
    // A query sees `ahead` keys after its own position (0 in causal attention) and the last `window` positions up to
    // and including its own. Both are at most T.
    int ahead;
    int window;
    // The factor of the products q k^T, and the same for base-2 exponents. Constant memory: they need no registers.
    float scale;
    float exponent_scale;
    // Softcap of the products before scaling: cap / scale; 0 without a cap.
    float cap;
    int padding;

    // Whether the kernel supports document masks and dropout of attention weights.
    static constexpr bool masked = false;
    // Factor of the weights that dropout keeps.
    static constexpr float factor = 1.0f;

    // `first_seen` is the first key seen by the queries from `query` on; `after_seen` is one past the last key seen by
    // the queries up to `query`.
    __device__ __forceinline__ int first_seen(int, int query) const { return max(0, query - window + 1); }

    // The key at which the tiles of keys of these queries begin.
    __device__ __forceinline__ int first_taken(int batch, int query) const { return first_seen(batch, query); }

    __device__ __forceinline__ int after_seen(int query) const { return min(sequence, query + ahead + 1); }

    // Whether `key` lies within the window of `query`.
    __device__ __forceinline__ bool is_near(int query, int key) const {
        return key - query <= ahead && query - key < window;
    }

    // Whether the query sees the key. Does not check that the key lies within the sequence.
    __device__ __forceinline__ bool sees(int, int query, int key) const { return is_near(query, key); }
};

// Sizes of the rarer cases: documents masked from each other, dropout of weights, or both. The kernel distinguishes
// them at run time, which avoids compiling a third set of kernels.
struct MaskedSizes : AttentionSizes {
    // [B, T]: start of each position's document within its sequence, non-decreasing. Null if every sequence is one
    // document.
    const int* starts;
    Chance chance;
    float factor;
    int last_padding;

    static constexpr bool masked = true;

    // Queries past the sequence are treated as its last query.
    __device__ __forceinline__ int start(int batch, int query) const {
        return starts[static_cast<size_t>(batch) * sequence + min(query, sequence - 1)];
    }

    __device__ __forceinline__ int first_seen(int batch, int query) const {
        const int near = AttentionSizes::first_seen(batch, query);
        return starts == nullptr ? near : max(near, start(batch, query));
    }

    // Rounded down to a multiple of 32 keys: the random numbers of dropout are made for 32 keys at a time.
    __device__ __forceinline__ int first_taken(int batch, int query) const { return first_seen(batch, query) & ~31; }

    __device__ __forceinline__ bool sees(int batch, int query, int key) const {
        return is_near(query, key) && (starts == nullptr || key >= start(batch, query));
    }
};

// Initial value of the running maximum: below every score, and finite, so that its difference from itself is 0, not
// NaN.
constexpr float LEAST_SCORE = -1e30f;

// Softcap of a product; `cap` is positive.
__device__ __forceinline__ float capped(float product, float cap) { return cap * tanhf(product / cap); }

// Derivative of the softcap, computed from the capped product `within`.
__device__ __forceinline__ float cap_slope(float within, float cap) {
    const float share = within / cap;
    return 1.0f - share * share;
}

// The work of a block: a tile of one head's queries or keys.
struct Place {
    // Index over the batch and the query or key heads.
    int batch_head;
    int batch;
    int head;
    int tile;

    // Blocks are numbered by groups of heads, within a group by tiles, and within a tile by heads. The tiles that take
    // longest (the last ones if `last_first`, otherwise the first) thus start before the others of their group.
    __device__ __forceinline__ static Place of_block(const AttentionSizes& sizes, int heads, int tiles,
                                                     bool last_first) {
        const int group = blockIdx.x / (sizes.group * tiles), within = blockIdx.x % (sizes.group * tiles);
        const int first = group * sizes.group, members = min(sizes.group, sizes.batch * heads - first);
        Place place;
        place.batch_head = first + within % members;
        place.batch = place.batch_head / heads;
        place.head = place.batch_head % heads;
        place.tile = last_first ? tiles - 1 - within / members : within / members;
        return place;
    }
};

// One head's rows in memory.
template <class T>
struct Rows {
    T* start;
    // Distance between rows, in elements.
    int stride;
    int count;
    int width;
    // Whether rows start at multiples of 16 bytes and their size is a multiple of 16 bytes (vectorized loads).
    bool by_vector;

    __device__ __forceinline__ T* row(int index) const { return start + static_cast<size_t>(index) * stride; }

    __device__ __forceinline__ Rows after(int columns) const {
        return Rows{start + columns, stride, count, width, by_vector};
    }
};

// Rows of qkv or of its gradient, from a column on.
template <class T>
__device__ __forceinline__ Rows<T> rows_of_qkv(T* qkv, const AttentionSizes& sizes, int batch, int column) {
    T* start = qkv + static_cast<size_t>(batch) * sizes.sequence * sizes.width;
    return Rows<T>{start + column, sizes.width, sizes.sequence, sizes.head, sizes.head * sizeof(T) % 16 == 0};
}

// Rows of one query head.
template <class T>
__device__ __forceinline__ Rows<T> queries_of(T* qkv, const AttentionSizes& sizes, int batch, int head) {
    return rows_of_qkv(qkv, sizes, batch, head * sizes.head);
}

// Rows of one key head.
template <class T>
__device__ __forceinline__ Rows<T> keys_of(T* qkv, const AttentionSizes& sizes, int batch, int key_head) {
    return rows_of_qkv(qkv, sizes, batch, sizes.channels + key_head * sizes.head);
}

template <class T>
__device__ __forceinline__ Rows<T> values_of(T* qkv, const AttentionSizes& sizes, int batch, int key_head) {
    const int key_channels = (sizes.width - sizes.channels) / 2;
    return rows_of_qkv(qkv, sizes, batch, sizes.channels + key_channels + key_head * sizes.head);
}

// Rows of one head of out or of its gradient.
template <class T>
__device__ __forceinline__ Rows<T> rows_of_out(T* out, const AttentionSizes& sizes, int batch, int head) {
    T* start = out + static_cast<size_t>(batch) * sizes.sequence * sizes.channels;
    return Rows<T>{start + head * sizes.head, sizes.channels, sizes.sequence, sizes.head,
                   sizes.head * sizeof(T) % 16 == 0};
}

// Per-query inputs of the backward passes: the logarithm of the softmax sum (lse), and the sum of dout * out (delta).
struct RowStatistics {
    float lse;
    float delta;

    // Past the sequence an infinite lse makes all weights zero.
    __device__ __forceinline__ static RowStatistics of(const float* lse, const float* delta,
                                                       const AttentionSizes& sizes, int batch_head,
                                                       int query) {
        const size_t at = static_cast<size_t>(batch_head) * sizes.sequence + query;
        return query < sizes.sequence ? RowStatistics{lse[at], delta[at]} : RowStatistics{INFINITY, 0.0f};
    }
};

// Number of tiles of `size` rows that cover `count` rows.
__device__ __forceinline__ int tiles_of(int count, int size) { return (count + size - 1) / size; }

// Iterates over the tiles of queries that see a tile of keys, for each of the query heads that share the key head.
struct QueryTiles {
    int begin;
    int end;
    int head;
    int last_head;
    int first_query;

    __device__ __forceinline__ QueryTiles(const AttentionSizes& sizes, const Place& keys, int first_key, int rows)
        : begin(max(0, first_key - sizes.ahead)),
          end(min(sizes.sequence, first_key + rows - 1 + sizes.window)),
          head(keys.head * sizes.shared),
          last_head(head + sizes.shared - 1),
          first_query(begin) {}

    __device__ __forceinline__ bool more() const { return head <= last_head; }

    __device__ __forceinline__ QueryTiles next(int rows) const {
        QueryTiles tiles = *this;
        tiles.first_query += rows;
        if (tiles.first_query >= end) {
            tiles.first_query = begin;
            tiles.head++;
        }
        return tiles;
    }
};
