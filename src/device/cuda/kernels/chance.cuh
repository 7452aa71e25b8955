// Dropout: which elements of a sample are dropped is a function of the sample's seed, the site, the row in the sample
// and the column, the same as on the CPU. src/ops/dropout.rs defines the random number of each element.
#pragma once
#include "philox.cuh"

struct Chance {
    // [B, 2]: the seed of each sample, two words (low, high).
    const int* seeds;
    uint32_t site;
    // Keep probability in units of 1/65536. At 65536 nothing is dropped, and `seeds` is unused.
    uint32_t kept;

    __device__ __forceinline__ bool drops() const { return kept < 65536; }

    // The random numbers of block `block` of a row. Column c uses block `c / 32 * 4 + c % 8 / 2`, word `c % 32 / 8`; a
    // word holds the numbers of an even column and the next one.
    __device__ __forceinline__ uint4 numbers(int sample, uint32_t row, uint32_t block) const {
        const uint32_t low = seeds[2 * sample], high = seeds[2 * sample + 1];
        return philox(static_cast<uint64_t>(row) << 32 | block, site, 0, static_cast<uint64_t>(high) << 32 | low);
    }

    // Whether the even (bit 0) and the odd (bit 1) column of a word are kept. Only valid if `drops()`.
    __device__ __forceinline__ uint32_t kept_of(uint32_t word) const {
        const uint32_t limit = kept << 16;
        return (word << 16 < limit ? 1 : 0) | (word < limit ? 2 : 0);
    }
};

__device__ __forceinline__ uint32_t word_of(const uint4& words, int index) {
    const uint32_t even = index & 2 ? words.z : words.x, odd = index & 2 ? words.w : words.y;
    return index & 1 ? odd : even;
}
