// Shared by the f32 attention kernels: tiles in shared memory, and products of tiles by one block in f32 arithmetic.
//
// D is the head dimension padded to 32, 64, 96, 128 or 256; the padding columns are zero. 256 threads form a square of
// 16 by 16 (`down`, `across`); of a tile of scores, a thread holds rows down + 16 i and columns across + 16 j.
#pragma once
#include "attention_blocks.cuh"

constexpr int F32_SIDE = 16;
constexpr int F32_THREADS = F32_SIDE * F32_SIDE;
// Minimum number of blocks per multiprocessor (occupancy): limits threads to 128 registers, which all kernels fit.
constexpr int F32_BLOCKS = 2;

// Tile sizes of the backward passes by padded head dimension: `kept` rows stay in the block while tiles of `passing`
// rows are streamed past them. launches/attention.rs repeats them. Limit: 99 KiB of shared memory.
template <int D>
struct F32BackwardTiles {
    static constexpr int kept = D <= 64 ? 64 : D <= 128 ? 32 : 16;
    static constexpr int passing = D <= 128 ? 32 : 16;
};

// Row stride of a tile in elements, padded against bank conflicts: 16-byte reads of one column by eight threads hit
// different banks.
constexpr __device__ __forceinline__ int f32_stride(int columns) { return columns + 4; }

// Copies ROWS rows of a head, from `first` on, into a tile. Elements past the sequence or the head are zero.
template <int D, int ROWS>
__device__ __forceinline__ void load_tile(float* tile, const Rows<const float>& source, int first) {
#pragma unroll 4
    for (int item = threadIdx.x; item < ROWS * D / 4; item += F32_THREADS) {
        const int row = item / (D / 4), column = item % (D / 4) * 4;
        Vector<float> values{};
        if (first + row < source.count && column < source.width) {
            const float* from = source.row(first + row) + column;
            if (source.by_vector) {
                values = load_vector(from);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    values.set(i, column + i < source.width ? from[i] : 0.0f);
                }
            }
        }
        store_vector(tile + row * f32_stride(D) + column, values);
    }
}

// result[ROWS, COLUMNS] = left[ROWS, D] right[COLUMNS, D]^T; `result` holds the thread's elements.
template <int D, int ROWS, int COLUMNS>
__device__ __forceinline__ void multiply(float (&result)[ROWS / F32_SIDE][COLUMNS / F32_SIDE],
                                         const float* left, const float* right) {
    constexpr int DOWN = ROWS / F32_SIDE, ACROSS = COLUMNS / F32_SIDE;
    left += threadIdx.x / F32_SIDE * f32_stride(D);
    right += threadIdx.x % F32_SIDE * f32_stride(D);
#pragma unroll
    for (int i = 0; i < DOWN; i++) {
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
            result[i][j] = 0.0f;
        }
    }
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        Vector<float> a[DOWN], b[ACROSS];
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
            a[i] = load_vector(left + i * F32_SIDE * f32_stride(D) + d);
        }
#pragma unroll
        for (int j = 0; j < ACROSS; j++) {
            b[j] = load_vector(right + j * F32_SIDE * f32_stride(D) + d);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int i = 0; i < DOWN; i++) {
#pragma unroll
                for (int j = 0; j < ACROSS; j++) {
                    result[i][j] = fmaf(a[i].get(e), b[j].get(e), result[i][j]);
                }
            }
        }
    }
}

// Applies the softcap to the thread's elements of a tile of products.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void cap_products(float (&products)[ROWS / F32_SIDE][COLUMNS / F32_SIDE], float cap) {
#pragma unroll
    for (int i = 0; i < ROWS / F32_SIDE; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / F32_SIDE; j++) {
            products[i][j] = capped(products[i][j], cap);
        }
    }
}

// Masks the thread's elements of a tile of scores: keys that the query does not see, or past the sequence, get minus
// infinity.
template <int QUERIES, int KEYS, class Sizes>
__device__ __forceinline__ void hide_unseen(float (&scores)[QUERIES / F32_SIDE][KEYS / F32_SIDE], const Sizes& sizes,
                                            int batch, int first_query, int first_key) {
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
#pragma unroll
    for (int i = 0; i < QUERIES / F32_SIDE; i++) {
#pragma unroll
        for (int j = 0; j < KEYS / F32_SIDE; j++) {
            const int query = first_query + down + i * F32_SIDE, key = first_key + across + j * F32_SIDE;
            if (!sizes.sees(batch, query, key) || key >= sizes.sequence) {
                scores[i][j] = -INFINITY;
            }
        }
    }
}

// Dropout mask of the thread's elements of a tile of weights: bit `i ACROSS + j` is set if the weight is kept. The
// query row of a head is row `head * T + query` of its sample; `row` is the first one of the tile. Keys are the
// columns, from `first_key` on, a multiple of 16, or of 32 if the tile has 32 keys or more.
template <bool COLUMNS_ARE_KEYS, int ROWS, int COLUMNS>
__device__ __forceinline__ uint32_t kept_weights(const Chance& chance, int sample, uint32_t row, int first_key) {
    constexpr int ACROSS = COLUMNS / F32_SIDE;
    constexpr int QUERIES = (COLUMNS_ARE_KEYS ? ROWS : COLUMNS) / F32_SIDE;
    constexpr int KEYS = (COLUMNS_ARE_KEYS ? COLUMNS : ROWS) / F32_SIDE;
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
    row += COLUMNS_ARE_KEYS ? down : across;
    const int key = first_key + (COLUMNS_ARE_KEYS ? across : down);
    uint32_t kept = 0;
#pragma unroll
    for (int q = 0; q < QUERIES; q++) {
#pragma unroll
        for (int block = 0; block < KEYS; block += 2) {
            const uint4 numbers = chance.numbers(sample, row + q * F32_SIDE,
                                                 (key / 32 + block / 2) * 4 + key % 8 / 2);
#pragma unroll
            for (int k = block; k < block + 2 && k < KEYS; k++) {
                const uint32_t pair = word_of(numbers, (key / 8 + k % 2 * 2) % 4);
                const int place = COLUMNS_ARE_KEYS ? q * ACROSS + k : k * ACROSS + q;
                kept |= (chance.kept_of(pair) >> key % 2 & 1) << place;
            }
        }
    }
    return kept;
}

// Applies the dropout mask to the thread's elements of a tile: kept ones are multiplied by `factor`, the others become
// 0.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void drop(float (&values)[ROWS / F32_SIDE][COLUMNS / F32_SIDE], uint32_t kept, float factor) {
#pragma unroll
    for (int i = 0; i < ROWS / F32_SIDE; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / F32_SIDE; j++) {
            const bool is_kept = kept >> (i * (COLUMNS / F32_SIDE) + j) & 1;
            values[i][j] = is_kept ? values[i][j] * factor : 0.0f;
        }
    }
}

// The thread's elements of an accumulator [ROWS, D]: rows down + 16 i, and pairs of columns 2 across + 32 j.
template <int D, int ROWS>
struct HeadRows {
    static constexpr int rows = ROWS / F32_SIDE, pairs = D / F32_SIDE / 2;
    float2 values[rows][pairs];

    __device__ __forceinline__ HeadRows() {
#pragma unroll
        for (int i = 0; i < rows; i++) {
#pragma unroll
            for (int j = 0; j < pairs; j++) {
                values[i][j] = make_float2(0.0f, 0.0f);
            }
        }
    }

    __device__ __forceinline__ void scale(int i, float factor) {
#pragma unroll
        for (int j = 0; j < pairs; j++) {
            values[i][j].x *= factor;
            values[i][j].y *= factor;
        }
    }

    // += left[ROWS, INNER] right[INNER, D]
    template <int INNER>
    __device__ __forceinline__ void add_product(const float* left, const float* right) {
        left += threadIdx.x / F32_SIDE * f32_stride(INNER);
        right += threadIdx.x % F32_SIDE * 2;
#pragma unroll 2
        for (int k = 0; k < INNER; k += 4) {
            Vector<float> a[rows];
#pragma unroll
            for (int i = 0; i < rows; i++) {
                a[i] = load_vector(left + i * F32_SIDE * f32_stride(INNER) + k);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
#pragma unroll
                for (int j = 0; j < pairs; j++) {
                    const float2 b =
                        *reinterpret_cast<const float2*>(right + (k + e) * f32_stride(D) + j * 2 * F32_SIDE);
#pragma unroll
                    for (int i = 0; i < rows; i++) {
                        values[i][j].x = fmaf(a[i].get(e), b.x, values[i][j].x);
                        values[i][j].y = fmaf(a[i].get(e), b.y, values[i][j].y);
                    }
                }
            }
        }
    }

    // Writes the elements, times `factor`, to rows of global memory from `first` on.
    __device__ __forceinline__ void store(const Rows<float>& destination, int first, float factor) const {
#pragma unroll
        for (int i = 0; i < rows; i++) {
            const int row = first + threadIdx.x / F32_SIDE + i * F32_SIDE;
            if (row >= destination.count) {
                continue;
            }
#pragma unroll
            for (int j = 0; j < pairs; j++) {
                const int column = threadIdx.x % F32_SIDE * 2 + j * 2 * F32_SIDE;
                float* to = destination.row(row) + column;
                const float2 pair = make_float2(values[i][j].x * factor, values[i][j].y * factor);
                if (destination.by_vector && column < destination.width) {
                    *reinterpret_cast<float2*>(to) = pair;
                } else if (column < destination.width) {
                    to[0] = pair.x;
                    if (column + 1 < destination.width) {
                        to[1] = pair.y;
                    }
                }
            }
        }
    }
};

// Stores the thread's elements of a tile of scores in shared memory, for `add_product`.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void keep_scores(float* tile,
                                            const float (&scores)[ROWS / F32_SIDE][COLUMNS / F32_SIDE]) {
    const int down = threadIdx.x / F32_SIDE, across = threadIdx.x % F32_SIDE;
#pragma unroll
    for (int i = 0; i < ROWS / F32_SIDE; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / F32_SIDE; j++) {
            tile[(down + i * F32_SIDE) * f32_stride(COLUMNS) + across + j * F32_SIDE] = scores[i][j];
        }
    }
}
