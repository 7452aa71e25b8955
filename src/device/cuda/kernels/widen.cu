// Widens unsigned integers to 32 bits.
#include "compat.cuh"

constexpr int BLOCK = 256;
constexpr int SINGLES = 8;

// If `masked`, the largest value of the type encodes -1.
template <class From>
__device__ __forceinline__ void widen(int* output, const From* input, uint64_t count, uint32_t masked) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * SINGLES + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SINGLES; ++i) {
        const uint64_t place = first + static_cast<uint64_t>(i) * BLOCK;
        if (place >= count) return;
        const From number = input[place];
        output[place] = masked && number == static_cast<From>(~0u) ? -1 : static_cast<int>(number);
    }
}

#define WIDEN(From, suffix)                                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK) widen_##suffix(                                              \
        int* __restrict__ output, const From* __restrict__ input, uint64_t count, uint32_t masked) {                 \
        widen(output, input, count, masked);                                                                         \
    }                                                                                                                \
    REGISTER(widen_##suffix)

WIDEN(uint8_t, u8)
WIDEN(uint16_t, u16)
