// Constants and random numbers.
//
// Elements 4j to 4j + 3 come from one block of Philox4x32-10 (Salmon et al. 2011), whose counter is (low half of j,
// high half of j, site, 0) and whose key is the seed, as on the processor: the words (a, b, c, d) become the pairs
// (a, b) and (c, d), and each pair (u, v) two normal numbers, r cos t and r sin t with r = sqrt(-2 ln((u + 1) / 2^32))
// and t = 2 pi v / 2^32 (Box and Muller 1958), in f64.
#include "vectors.cuh"

constexpr double UNIT = 1.0 / 4294967296.0;

// Stores what there are of four values.
__device__ __forceinline__ void store_up_to_four(float* sink, const float (&values)[4], uint64_t left) {
    if (left >= 4) {
        store_floats(sink, values);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 3; ++i) {
            if (i < left) sink[i] = values[i];
        }
    }
}

extern "C" __global__ void fill(float* output, uint64_t count, float value) {
    const uint64_t start = 4 * (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (start < count) store_up_to_four(output + start, {value, value, value, value}, count - start);
}
REGISTER(fill)

__device__ __forceinline__ void philox_round(uint32_t (&counter)[4], const uint32_t (&key)[2]) {
    const uint64_t first = static_cast<uint64_t>(counter[0]) * 0xD2511F53u;
    const uint64_t second = static_cast<uint64_t>(counter[2]) * 0xCD9E8D57u;
    counter[0] = static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0];
    counter[1] = static_cast<uint32_t>(second);
    counter[2] = static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1];
    counter[3] = static_cast<uint32_t>(first);
}

// Two normal numbers of mean 0.
__device__ __forceinline__ void box_muller(float* numbers, uint32_t u, uint32_t v, double deviation) {
    const double radius = sqrt(-2.0 * log((u + 1.0) * UNIT));
    double sine, cosine;
    sincospi(2.0 * UNIT * v, &sine, &cosine);
    numbers[0] = static_cast<float>(radius * cosine * deviation);
    numbers[1] = static_cast<float>(radius * sine * deviation);
}

extern "C" __global__ void normal(float* output, uint64_t count, float deviation, uint64_t seed, uint32_t site) {
    const uint64_t block = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * block >= count) return;
    uint32_t counter[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), site, 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
#pragma unroll
    for (int i = 0; i < 10; ++i) {
        philox_round(counter, key);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    float numbers[4];
    box_muller(numbers, counter[0], counter[1], deviation);
    box_muller(numbers + 2, counter[2], counter[3], deviation);
    store_up_to_four(output + 4 * block, numbers, count - 4 * block);
}
REGISTER(normal)
