// Which elements of samples are dropped by chance: a function of a sample's seed, the site, a row of the sample and a
// column of that, the same as on the processor. src/ops/dropout.rs says which number each element has.
#pragma once
#include "philox.cuh"

struct Chance {
    // [B, 2]: two words of each sample.
    const int* seeds;
    uint32_t site;
    // So many of 65536; with all of them nothing is dropped, and there are no seeds.
    uint32_t kept;

    __device__ __forceinline__ bool drops() const { return kept < 65536; }

    // The numbers of a row that block `column / 32 * 4 + column % 8 / 2` has for columns: word `column % 32 / 8` those of an
    // even and of the next one.
    __device__ __forceinline__ uint4 numbers(int sample, uint32_t row, uint32_t block) const {
        const uint32_t low = seeds[2 * sample], high = seeds[2 * sample + 1];
        return philox(static_cast<uint64_t>(row) << 32 | block, site, 0, static_cast<uint64_t>(high) << 32 | low);
    }

    // Whether the even and the odd column of a word are kept, if any is dropped: two bits.
    __device__ __forceinline__ uint32_t kept_of(uint32_t word) const {
        const uint32_t limit = kept << 16;
        return (word << 16 < limit ? 1 : 0) | (word < limit ? 2 : 0);
    }
};

__device__ __forceinline__ uint32_t word_of(const uint4& words, int index) {
    const uint32_t even = index & 2 ? words.z : words.x, odd = index & 2 ? words.w : words.y;
    return index & 1 ? odd : even;
}
