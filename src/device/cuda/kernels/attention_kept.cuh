// Dropout masks of the 16-bit attention kernels.
//
// Masks are computed before the products that use them: the random numbers take registers, and one bit a weight takes
// almost none. The query row of a head is row `head * T + query` of its sample, and keys are the columns.
#pragma once
#include "chance.cuh"

// One bit (1 = kept) for each of a lane's weights of a tile of 16 x 8 TILES weights in each of up to two bands.
template <int TILES>
struct Kept {
    uint32_t bits[(TILES + 3) / 4];

    __device__ __forceinline__ Kept() {
#pragma unroll
        for (int word = 0; word < (TILES + 3) / 4; word++) {
            bits[word] = 0;
        }
    }

    __device__ __forceinline__ static int place(int band, int n, int i) { return n % 4 * 8 + band * 4 + i; }

    // Mask with the warp's queries as rows, from `row` of the sample on, and keys as columns, from `first_key` on: a
    // multiple of 16, or of 32 if the tile has 32 keys or more. The columns of a lane, out of 32, share one block of
    // random numbers.
    template <int BANDS>
    __device__ __forceinline__ void find_of_queries(const Chance& chance, int sample, uint32_t row, int first_key) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int word = 0; word < (TILES + 3) / 4; word++) {
                    const uint4 numbers = chance.numbers(sample, row + band * 16 + half * 8 + lane / 4,
                                                         (first_key / 32 + word) * 4 + lane % 4);
#pragma unroll
                    for (int n = 0; n < 4 && n < TILES; n++) {
                        const uint32_t pair = word_of(numbers, TILES < 4 ? first_key % 32 / 8 + n : n);
                        bits[word] |= chance.kept_of(pair) << place(band, n, half * 2);
                    }
                }
            }
        }
    }

    // Mask with the warp's keys as rows, from `first_key` on, and queries as columns, from `row` of the sample on. A
    // lane holds two queries of each tile, and the even or odd one of two neighbouring keys, whose random numbers share
    // words; another lane holds the other key. Each of the two lanes therefore makes the numbers of one query, and they
    // exchange the results.
    template <int BANDS>
    __device__ __forceinline__ void find_of_keys(const Chance& chance, int sample, uint32_t row, int first_key) {
        static_assert(TILES <= 4, "one word has all");
        const int lane = threadIdx.x % 32, odd = lane / 4 % 2;
        uint32_t own = 0;
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const uint4 numbers =
                chance.numbers(sample, row + n * 8 + lane % 4 * 2 + odd, first_key / 32 * 4 + lane / 8);
#pragma unroll
            for (int half = 0; half < 2 * BANDS; half++) {
                const uint32_t pair = word_of(numbers, BANDS == 1 ? first_key % 32 / 8 + half : half);
                own |= chance.kept_of(pair) << place(0, n, half * 2);
            }
        }
        const uint32_t other = __shfl_xor_sync(~0u, own, 4);
        const uint32_t of_even = (odd ? other : own) >> odd, of_odd = (odd ? own : other) >> odd;
        bits[0] = (of_even & 0x55555555u) | (of_odd & 0x55555555u) << 1;
    }

    __device__ __forceinline__ bool has(int band, int n, int i) const {
        return bits[n / 4] >> place(band, n, i) & 1;
    }

    // Applies the mask to the lane's values: kept ones are multiplied by `factor`, the others become 0.
    template <int BANDS>
    __device__ __forceinline__ void drop(float (&values)[BANDS][TILES][4], float factor) const {
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    values[band][n][i] = has(band, n, i) ? values[band][n][i] * factor : 0.0f;
                }
            }
        }
    }

    // Applies the mask to pairs of values rounded to 16 bits.
    template <int BANDS>
    __device__ __forceinline__ void drop(uint32_t (&rounded)[BANDS][TILES / 2][4]) const {
#pragma unroll
        for (int band = 0; band < BANDS; band++) {
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t& pair = rounded[band][n / 2][n % 2 * 2 + half];
                    pair &= (has(band, n, half * 2) ? 0xffffu : 0) | (has(band, n, half * 2 + 1) ? 0xffff0000u : 0);
                }
            }
        }
    }
};
