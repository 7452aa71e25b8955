// Samples from all samples of a data set (gather).
#include "compat.cuh"

constexpr int BLOCK = 256;
constexpr int SINGLES = 4;

// output[b, i] = samples[place[b], i]. Beyond the last sample, as are places with the mark of a missing one: `missing`.
template <class Element>
__device__ __forceinline__ void gather_samples(Element* output, const Element* samples, const uint64_t* place,
                                               uint64_t elements, uint64_t count, uint64_t length,
                                               uint32_t missing) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * SINGLES + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SINGLES; ++i) {
        const uint64_t at = first + static_cast<uint64_t>(i) * BLOCK;
        if (at >= elements) return;
        const uint64_t sample = at / length;
        const uint64_t index = place[sample];
        output[at] = index < count ? samples[index * length + (at - sample * length)] : static_cast<Element>(missing);
    }
}

#define GATHER_SAMPLES(Element, suffix)                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK) gather_samples_##suffix(                                     \
        Element* __restrict__ output, const Element* __restrict__ samples, const uint64_t* __restrict__ place,       \
        uint64_t elements, uint64_t count, uint64_t length, uint32_t missing) {                                      \
        gather_samples(output, samples, place, elements, count, length, missing);                                    \
    }                                                                                                                \
    REGISTER(gather_samples_##suffix)

GATHER_SAMPLES(uint8_t, u8)
GATHER_SAMPLES(uint16_t, u16)
GATHER_SAMPLES(uint32_t, u32)
