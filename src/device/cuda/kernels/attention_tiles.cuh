// Shared by the 16-bit attention kernels: tiles of a head's rows in shared memory, and products of tiles on one warp's
// tensor cores.
//
// D is the head dimension padded to 32, 64, 96, 128 or 256; the padding columns are zero. A warp works on 16 BANDS
// rows. In the fragment layout of `mma.m16n8k16`, a lane holds, of each 16 x 8 tile of a result, columns 2 (lane % 4)
// and 2 (lane % 4) + 1 of rows lane / 4 and lane / 4 + 8.
#pragma once
#include "attention_blocks.cuh"
#include "attention_kept.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// A tile in shared memory: rows of D elements in chunks of 16 bytes. The chunks of a row are permuted (swizzled)
// against bank conflicts: `ldmatrix` reads the chunks of eight rows in one column at a time, and they lie in different
// banks.
template <int D>
struct Tile {
    static constexpr int chunks = D / 8;

    __device__ __forceinline__ static int turn(int row) { return chunks % 8 == 0 ? row & 7 : (row >> 1) & 3; }

    // Offset of a chunk, in elements.
    __device__ __forceinline__ static int place(int row, int chunk) {
        return row * D + (chunk ^ turn(row)) * 8;
    }
};

// Starts to copy ROWS rows of a head, from `first` on, into a tile, without committing the cp.async group. Elements
// past the sequence or the head are zero.
template <int D, int ROWS, int THREADS, class T>
__device__ __forceinline__ void load_tile(T* tile, const Rows<const T>& source, int first) {
    if (source.by_vector) {
        // A thread's chunks lie at constant distances from its first one, in global memory and also in the tile, where
        // rows a multiple of eight apart are permuted alike.
        constexpr int CHUNKS = Tile<D>::chunks, ACROSS = CHUNKS % 8 == 0 ? 8 : 4, DOWN = THREADS / ACROSS;
        static_assert(DOWN % 8 == 0, "the first row decides a thread's turn");
        const int row = threadIdx.x / ACROSS, chunk = threadIdx.x % ACROSS;
        T* to = tile + Tile<D>::place(row, chunk);
        const T* from = source.row(first + row) + chunk * 8;
#pragma unroll
        for (int down = 0; down < ROWS; down += DOWN) {
#pragma unroll
            for (int across = 0; across < CHUNKS; across += ACROSS) {
                if (down + DOWN > ROWS && row >= ROWS - down) {
                    continue;
                }
                T* place = to + down * D + across * 8;
                if (first + row + down < source.count && (chunk + across) * 8 < source.width) {
                    cp_async16(place, from + static_cast<size_t>(down) * source.stride + across * 8);
                } else {
                    store_vector(place, Vector<T>{});
                }
            }
        }
    } else {
#pragma unroll 1
        for (int item = threadIdx.x; item < ROWS * D; item += THREADS) {
            const int row = item / D, column = item % D;
            const bool inside = first + row < source.count && column < source.width;
            tile[Tile<D>::place(row, column / 8) + column % 8] =
                inside ? source.row(first + row)[column] : T{};
        }
    }
}

// The addresses that a lane passes to `ldmatrix`, for 16 x 16 blocks of a tile whose first row and column are multiples
// of 16.
template <int D, class T>
struct Blocks {
    const T* row;
    int turn;

    // For the left operand, or for a right operand summed over its rows: the 8 x 8 matrices are ordered down, then
    // across.
    __device__ __forceinline__ static Blocks down(const T* tile, int lane) {
        return Blocks{tile + (lane & 15) * D, Tile<D>::turn(lane & 15) ^ (lane >> 4)};
    }

    // For a right operand summed over its columns: the 8 x 8 matrices are ordered across, then down.
    __device__ __forceinline__ static Blocks across(const T* tile, int lane) {
        const int row = (lane & 7) + (lane >> 4) * 8;
        return Blocks{tile + row * D, Tile<D>::turn(row) ^ (lane >> 3 & 1)};
    }

    __device__ __forceinline__ const T* at(int first_row, int column) const {
        return row + first_row * D + (turn ^ (column / 8)) * 8;
    }
};

// The left operand of a product: a warp's rows of a tile, kept in registers or loaded again at each use.
template <int D, int BANDS, bool KEPT, class T>
struct Left {
    Blocks<D, T> blocks;
    uint32_t kept[KEPT ? BANDS : 1][KEPT ? D / 16 : 1][4];

    __device__ __forceinline__ Left(const T* rows, int lane) : blocks(Blocks<D, T>::down(rows, lane)) {}

    // Loads the fragments to be kept; the tile must be complete.
    __device__ __forceinline__ void keep() {
        if constexpr (KEPT) {
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
#pragma unroll
                for (int k = 0; k < D / 16; k++) {
                    ldmatrix_x4(kept[band][k], blocks.at(band * 16, k * 16));
                }
            }
        }
    }

    __device__ __forceinline__ void get(uint32_t* fragment, int band, int k) const {
        if constexpr (KEPT) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                fragment[i] = kept[band][k][i];
            }
        } else {
            ldmatrix_x4(fragment, blocks.at(band * 16, k * 16));
        }
    }
};

// result[16 BANDS, COLUMNS] = left[16 BANDS, D] right[COLUMNS, D]^T
template <int D, int BANDS, int COLUMNS, bool KEPT, class T>
__device__ __forceinline__ void multiply(float (&result)[BANDS][COLUMNS / 8][4],
                                         const Left<D, BANDS, KEPT, T>& left, const Blocks<D, T>& right) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                result[band][n][i] = 0.0f;
            }
        }
    }
    // Fragments that are not kept are loaded for two steps at a time, one during the product of the other: all at once
    // would not fit the registers.
#pragma unroll(KEPT ? D / 16 : 2)
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[BANDS][4];
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
            left.get(a[band], band, k);
        }
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, right.at(n * 8, k * 16));
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                mma_16816<T>(result[band][n], a[band], b);
                mma_16816<T>(result[band][n + 1], a[band], b + 2);
            }
        }
    }
}

// result[16 BANDS, COLUMNS] += left[16 BANDS, INNER] right[INNER, COLUMNS]. The left operand is a result of `multiply`,
// rounded to T; the right one is the columns of a tile from `first_column` on.
template <int D, int COLUMNS, int BANDS, int INNER, class T>
__device__ __forceinline__ void accumulate(float (&result)[BANDS][COLUMNS / 8][4],
                                           const uint32_t (&left)[BANDS][INNER][4], const Blocks<D, T>& right,
                                           int first_column) {
#pragma unroll
    for (int k = 0; k < INNER; k++) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, right.at(k * 16, first_column + n * 8));
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                mma_16816<T>(result[band][n], left[band][k], b);
                mma_16816<T>(result[band][n + 1], left[band][k], b + 2);
            }
        }
    }
}

// Document mask: scores of keys before the query's own document become minus infinity. The starts of the documents are
// loaded again for each tile, to save registers.
template <bool COLUMNS_ARE_KEYS, int BANDS, int TILES>
__device__ __forceinline__ void hide_other_documents(float (&scores)[BANDS][TILES][4], const MaskedSizes& sizes,
                                                     int batch, int first_row, int first_column) {
    if (sizes.starts == nullptr) {
        return;
    }
    const int lane = threadIdx.x % 32;
    const int row = first_row + lane / 4, column = first_column + lane % 4 * 2;
    if constexpr (COLUMNS_ARE_KEYS) {
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int before = sizes.start(batch, row + band * 16 + half * 8) - column;
#pragma unroll
                for (int n = 0; n < TILES; n++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        if (n * 8 + i < before) scores[band][n][half * 2 + i] = -INFINITY;
                    }
                }
            }
        }
    } else {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int before = sizes.start(batch, column + n * 8 + i) - row;
#pragma unroll
                for (int band = 0; band < BANDS; band++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        if (band * 16 + half * 8 < before) scores[band][n][half * 2 + i] = -INFINITY;
                    }
                }
            }
        }
    }
}

// Sets scores of keys outside the query's window to minus infinity. Columns are keys and rows queries, or the reverse.
template <bool COLUMNS_ARE_KEYS, int BANDS, int TILES>
__device__ __forceinline__ void hide_unseen(float (&scores)[BANDS][TILES][4], const AttentionSizes& sizes,
                                            int first_row, int first_column) {
    const int lane = threadIdx.x % 32;
    const int start = first_column + lane % 4 * 2 - (first_row + lane / 4);
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int column_less_row = start + n * 8 + i % 2 - (band * 16 + i / 2 * 8);
                const int after_query = COLUMNS_ARE_KEYS ? column_less_row : -column_less_row;
                if (!sizes.is_near(0, after_query)) {
                    scores[band][n][i] = -INFINITY;
                }
            }
        }
    }
}

// Sets scores of columns past the sequence to minus infinity. Needed where queries see later keys.
template <int BANDS, int TILES>
__device__ __forceinline__ void hide_absent(float (&scores)[BANDS][TILES][4], int sequence, int first_column) {
    const int start = first_column + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int band = 0; band < BANDS; band++) {
                if (start + n * 8 + i % 2 >= sequence) {
                    scores[band][n][i] = -INFINITY;
                }
            }
        }
    }
}

// Applies the softcap to products.
template <int BANDS, int TILES>
__device__ __forceinline__ void cap_products(float (&products)[BANDS][TILES][4], float cap) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                products[band][n][i] = capped(products[band][n][i], cap);
            }
        }
    }
}

// Rounds results of `multiply` to left operands of `accumulate`. A lane holds the values of two adjacent 16 x 8 result
// tiles exactly where the operand layout of a 16 x 16 block expects them.
template <class T, int BANDS, int TILES>
__device__ __forceinline__ void round_to(uint32_t (&rounded)[BANDS][TILES / 2][4],
                                         const float (&values)[BANDS][TILES][4]) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            rounded[band][n / 2][n % 2 * 2] = pack<T>(values[band][n][0], values[band][n][1]);
            rounded[band][n / 2][n % 2 * 2 + 1] = pack<T>(values[band][n][2], values[band][n][3]);
        }
    }
}

// Writes a warp's results, times a factor, to rows of global memory from `first` on. They pass through the warp's own
// rows of a tile that is no longer needed, so that stores are vectorized.
template <int D, int COLUMNS, int BANDS, class T>
__device__ __forceinline__ void store_rows(const Rows<T>& destination, int first, int first_column, T* tile,
                                           const float (&values)[BANDS][COLUMNS / 8][4], float factor) {
    constexpr int CHUNKS = COLUMNS / 8;
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int band = 0; band < BANDS; band++) {
#pragma unroll
        for (int n = 0; n < CHUNKS; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = band * 16 + half * 8 + lane / 4;
                const float* pair = values[band][n] + half * 2;
                *reinterpret_cast<uint32_t*>(tile + Tile<D>::place(row, n) + lane % 4 * 2) =
                    pack<T>(pair[0] * factor, pair[1] * factor);
            }
        }
    }
    __syncwarp();
    const int width = min(COLUMNS, destination.width - first_column);
    const int rows = min(16 * BANDS, destination.count - first);
#pragma unroll 1
    for (int item = lane; item < rows * CHUNKS; item += 32) {
        const int row = item / CHUNKS, chunk = item % CHUNKS;
        const T* from = tile + Tile<D>::place(row, chunk);
        T* to = destination.row(first + row) + first_column + chunk * 8;
        if (chunk * 8 >= width) {
            continue;
        }
        if (destination.by_vector) {
            store_vector(to, load_vector(from));
        } else {
            for (int i = 0; i < min(8, width - chunk * 8); i++) {
                to[i] = from[i];
            }
        }
    }
}

// Maximum and sum over the four lanes that share a row.
__device__ __forceinline__ float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}
