// What all attention kernels share: which head and tile a block works on, and where that head's rows lie.
//
// B batch, T sequence, C channels, H heads, D = C / H. qkv is [B, T, 3C]: queries, keys and values side by side,
// each with its heads side by side; out and dout are [B, T, C], lse and delta [B, H, T].
#pragma once
#include "compat.cuh"

struct AttentionSizes {
    int batch_heads;
    int heads;
    int sequence;
    // The true D; kernels pad it.
    int head;
    int channels;
    // Heads whose blocks are started together: enough to fill the device, few enough for their keys and values to
    // stay in its cache.
    int group;
    // 1 / sqrt(D), and the same for exponents of two: log2(e) / sqrt(D). In constant memory they need no registers.
    float scale;
    float exponent_scale;
};

// What a block works on: a tile of one head's queries or keys.
struct Place {
    // Over B and H.
    int batch_head;
    int batch;
    int head;
    int tile;

    // Blocks are numbered over tiles, then over the heads of a group within each tile, then over groups, so that the
    // tiles that take longest, `last_first` or first, are begun before the others of a group.
    __device__ __forceinline__ static Place of_block(const AttentionSizes& sizes, int tiles,
                                                     bool last_first) {
        const int group = blockIdx.x / (sizes.group * tiles), within = blockIdx.x % (sizes.group * tiles);
        const int first = group * sizes.group, members = min(sizes.group, sizes.batch_heads - first);
        Place place;
        place.batch_head = first + within % members;
        place.batch = place.batch_head / sizes.heads;
        place.head = place.batch_head % sizes.heads;
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
};

// Queries (part 0), keys (1) or values (2) of a qkv or of its gradient.
template <class T>
__device__ __forceinline__ Rows<T> part_of_qkv(T* qkv, const AttentionSizes& sizes, const Place& place,
                                               int part) {
    T* start = qkv + static_cast<size_t>(place.batch) * sizes.sequence * 3 * sizes.channels;
    return Rows<T>{start + part * sizes.channels + place.head * sizes.head, 3 * sizes.channels,
                   sizes.sequence, sizes.head, sizes.head * sizeof(T) % 16 == 0};
}

// Of out or of its gradient.
template <class T>
__device__ __forceinline__ Rows<T> part_of_out(T* out, const AttentionSizes& sizes, const Place& place) {
    T* start = out + static_cast<size_t>(place.batch) * sizes.sequence * sizes.channels;
    return Rows<T>{start + place.head * sizes.head, sizes.channels, sizes.sequence, sizes.head,
                   sizes.head * sizeof(T) % 16 == 0};
}

// What the backward passes need of a query: the logarithm of its softmax's sum, and the sum over dout * out.
struct RowStatistics {
    float lse;
    float delta;

    // Past the sequence an infinite lse makes all weights zero.
    __device__ __forceinline__ static RowStatistics of(const float* lse, const float* delta,
                                                       const AttentionSizes& sizes, const Place& place,
                                                       int query) {
        const size_t at = static_cast<size_t>(place.batch_head) * sizes.sequence + query;
        return query < sizes.sequence ? RowStatistics{lse[at], delta[at]} : RowStatistics{INFINITY, 0.0f};
    }
};

// Tiles of `size` that cover `count` rows.
__device__ __forceinline__ int tiles_of(int count, int size) { return (count + size - 1) / size; }
