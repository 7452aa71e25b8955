// Philox4x32 with ten rounds (Salmon et al. 2011), with the same results as on the CPU.
#pragma once
#include "compat.cuh"

__device__ __forceinline__ void philox_round(uint32_t (&counter)[4], const uint32_t (&key)[2]) {
    const uint64_t first = static_cast<uint64_t>(counter[0]) * 0xD2511F53u;
    const uint64_t second = static_cast<uint64_t>(counter[2]) * 0xCD9E8D57u;
    counter[0] = static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<uint32_t>(second);
    counter[2] = static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<uint32_t>(first);
}

// The four random words of the counter (low half of `block`, high half, site, step).
__device__ __forceinline__ uint4 philox(uint64_t block, uint32_t site, uint32_t step, uint64_t seed) {
    uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), site, step};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        philox_round(counter, key);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return make_uint4(counter[0], counter[1], counter[2], counter[3]);
}
