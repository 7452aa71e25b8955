// Slices of a long row of tokens (gather).
#include "compat.cuh"

constexpr int BLOCK = 256;

// output[b, t] = row[place[b] + later + t]; -1 if the row has no such token, or, with `masks`, if the highest bit of
// the place marks the sample as missing. A block processes BLOCK tokens of a sample.
template <class Token>
__device__ __forceinline__ void stretch(int* output, const Token* row, const uint32_t* place, uint64_t tokens,
                                        uint32_t length, uint32_t later, uint32_t masks) {
    const uint32_t t = blockIdx.y * BLOCK + threadIdx.x;
    if (t >= length) return;
    const uint32_t upper = place[2 * blockIdx.x + 1];
    const bool is_masked = masks && upper >> 31;
    const uint64_t start = static_cast<uint64_t>(upper & 0x7fffffffu) << 32 | place[2 * blockIdx.x];
    const uint64_t at = start + later + t;
    const bool is_there = !is_masked && start < tokens && at < tokens;
    output[static_cast<uint64_t>(blockIdx.x) * length + t] = is_there ? static_cast<int>(row[at]) : -1;
}

#define STRETCH(Token, suffix)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK) stretch_##suffix(                                            \
        int* __restrict__ output, const Token* __restrict__ row, const uint32_t* __restrict__ place,                 \
        uint64_t tokens, uint32_t length, uint32_t later, uint32_t masks) {                                          \
        stretch(output, row, place, tokens, length, later, masks);                                                   \
    }                                                                                                                \
    REGISTER(stretch_##suffix)

STRETCH(uint8_t, u8)
STRETCH(uint16_t, u16)
STRETCH(int, i32)
