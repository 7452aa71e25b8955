// What all attention kernels share: which head and tile a block works on, where that head's rows lie, and which keys a
// query sees.
//
// B batch, T sequence, H heads of queries, G of keys and values, which H / G heads of queries in a row share, D channels of
// each. qkv is [B, T, (H + 2G) D]: queries, keys and values side by side, each with its heads side by side; out and dout
// are [B, T, H D], lse and delta [B, H, T].
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
    // H D, and of a row of qkv.
    int channels;
    int width;
    // Heads whose blocks are started together: enough to fill the device, few enough for their keys and values to
    // stay in its cache.
    int group;
    // A query sees so many keys after its own position, none of a causal attention, and those of `window` positions up to its
    // own. Both are at most T.
    int ahead;
    int window;
    // What products are multiplied by, and the same for exponents of two. In constant memory they need no registers.
    float scale;
    float exponent_scale;
    // What products are capped to before that, cap / scale; 0 if they are not.
    float cap;
    int padding;

    // Whether queries may see less than that, or weights be dropped.
    static constexpr bool masked = false;
    // What weights that are kept are multiplied by.
    static constexpr float factor = 1.0f;

    // The first key that queries of a sequence from this one on see, and what comes after the last that those up to this one
    // do.
    __device__ __forceinline__ int first_seen(int, int query) const { return max(0, query - window + 1); }

    // The key that such queries' tiles of keys begin at.
    __device__ __forceinline__ int first_taken(int batch, int query) const { return first_seen(batch, query); }

    __device__ __forceinline__ int after_seen(int query) const { return min(sequence, query + ahead + 1); }

    // Whether a query is near enough to see a key.
    __device__ __forceinline__ bool is_near(int query, int key) const {
        return key - query <= ahead && query - key < window;
    }

    // Whether a query of a sequence sees a key, if there is one of this number.
    __device__ __forceinline__ bool sees(int, int query, int key) const { return is_near(query, key); }
};

// Of what is rarer: queries that see nothing before their own documents, weights that are dropped, or both. Which it is, is
// found out as a kernel runs: there is no third set of kernels to compile.
struct MaskedSizes : AttentionSizes {
    // [B, T]: where the document of each position begins in its sequence; they never fall. Null where each is one document.
    const int* starts;
    Chance chance;
    float factor;
    int last_padding;

    static constexpr bool masked = true;

    // A query past the sequence is as its last.
    __device__ __forceinline__ int start(int batch, int query) const {
        return starts[static_cast<size_t>(batch) * sequence + min(query, sequence - 1)];
    }

    __device__ __forceinline__ int first_seen(int batch, int query) const {
        const int near = AttentionSizes::first_seen(batch, query);
        return starts == nullptr ? near : max(near, start(batch, query));
    }

    // Where the numbers of 32 keys begin.
    __device__ __forceinline__ int first_taken(int batch, int query) const { return first_seen(batch, query) & ~31; }

    __device__ __forceinline__ bool sees(int batch, int query, int key) const {
        return is_near(query, key) && (starts == nullptr || key >= start(batch, query));
    }
};

// Further down than any score, and no further from itself than 0: what the largest of no scores is.
constexpr float LEAST_SCORE = -1e30f;

// Products within a cap, which has to be there.
__device__ __forceinline__ float capped(float product, float cap) { return cap * tanhf(product / cap); }

// What the gradient of a product is multiplied by, from what it was capped to.
__device__ __forceinline__ float cap_slope(float within, float cap) {
    const float share = within / cap;
    return 1.0f - share * share;
}

// What a block works on: a tile of one head's queries or keys.
struct Place {
    // Over B and the heads of queries or of keys.
    int batch_head;
    int batch;
    int head;
    int tile;

    // Blocks are numbered over tiles, then over the heads of a group within each tile, then over groups, so that the
    // tiles that take longest, `last_first` or first, are begun before the others of a group.
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
    // Elements from one row to the next.
    int stride;
    int count;
    int width;
    // Whether rows begin at multiples of 16 bytes and have a multiple of 16 bytes.
    bool by_vector;

    __device__ __forceinline__ T* row(int index) const { return start + static_cast<size_t>(index) * stride; }

    __device__ __forceinline__ Rows after(int columns) const {
        return Rows{start + columns, stride, count, width, by_vector};
    }
};

// Of a qkv or of its gradient, from a column on.
template <class T>
__device__ __forceinline__ Rows<T> rows_of_qkv(T* qkv, const AttentionSizes& sizes, int batch, int column) {
    T* start = qkv + static_cast<size_t>(batch) * sizes.sequence * sizes.width;
    return Rows<T>{start + column, sizes.width, sizes.sequence, sizes.head, sizes.head * sizeof(T) % 16 == 0};
}

// Of a head of queries.
template <class T>
__device__ __forceinline__ Rows<T> queries_of(T* qkv, const AttentionSizes& sizes, int batch, int head) {
    return rows_of_qkv(qkv, sizes, batch, head * sizes.head);
}

// Of a head of keys.
template <class T>
__device__ __forceinline__ Rows<T> keys_of(T* qkv, const AttentionSizes& sizes, int batch, int key_head) {
    return rows_of_qkv(qkv, sizes, batch, sizes.channels + key_head * sizes.head);
}

template <class T>
__device__ __forceinline__ Rows<T> values_of(T* qkv, const AttentionSizes& sizes, int batch, int key_head) {
    const int key_channels = (sizes.width - sizes.channels) / 2;
    return rows_of_qkv(qkv, sizes, batch, sizes.channels + key_channels + key_head * sizes.head);
}

// Of a head of out or of its gradient.
template <class T>
__device__ __forceinline__ Rows<T> rows_of_out(T* out, const AttentionSizes& sizes, int batch, int head) {
    T* start = out + static_cast<size_t>(batch) * sizes.sequence * sizes.channels;
    return Rows<T>{start + head * sizes.head, sizes.channels, sizes.sequence, sizes.head,
                   sizes.head * sizeof(T) % 16 == 0};
}

// What the backward passes need of a query: the logarithm of its softmax's sum, and the sum over dout * out.
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

// Tiles of `size` that cover `count` rows.
__device__ __forceinline__ int tiles_of(int count, int size) { return (count + size - 1) / size; }

// The tiles of queries that see a tile of keys, of one head that shares them after the other.
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

    // The tile after this one.
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
