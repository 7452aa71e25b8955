// Rotary position embedding of queries and keys.
#include "compat.cuh"

constexpr int BLOCK = 256;
constexpr int PAIRS = 128;

// Angle per position, in radians, of each pair of channels of a head.
struct Frequencies {
    float of[PAIRS];
};

// One block per row: the first `heads` heads are rotated, the others are copied. `rotated` may be `qkv`.
template <class T>
__device__ __forceinline__ void rotary(T* rotated, const T* qkv, const Frequencies& frequencies, uint32_t sequence,
                                       uint32_t width, uint32_t heads, uint32_t head, uint32_t inverse) {
    rotated += static_cast<uint64_t>(blockIdx.x) * width;
    qkv += static_cast<uint64_t>(blockIdx.x) * width;
    const float position = static_cast<float>(blockIdx.x % sequence);
    const uint32_t half = head / 2;
    // Cosine and sine of each pair: the same for all heads of a position.
    __shared__ float2 turns[PAIRS];
    if (threadIdx.x < half) {
        float sine, cosine;
        sincosf(position * frequencies.of[threadIdx.x], &sine, &cosine);
        turns[threadIdx.x] = make_float2(cosine, inverse != 0 ? -sine : sine);
    }
    __syncthreads();
    for (uint32_t item = threadIdx.x; item < heads * half; item += BLOCK) {
        const uint32_t pair = item % half, first = item / half * head + pair;
        const float cosine = turns[pair].x, sine = turns[pair].y;
        const float x = to_float(qkv[first]), y = to_float(qkv[first + half]);
        rotated[first] = from_float<T>(x * cosine - y * sine);
        rotated[first + half] = from_float<T>(y * cosine + x * sine);
    }
    for (uint32_t c = heads * head + threadIdx.x; c < width; c += BLOCK) rotated[c] = qkv[c];
}

#define ROTARY(T, suffix)                                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        rotary_##suffix(T* rotated, const T* qkv, const Frequencies frequencies, uint32_t sequence, uint32_t width,  \
                        uint32_t heads, uint32_t head, uint32_t inverse) {                                           \
        rotary(rotated, qkv, frequencies, sequence, width, heads, head, inverse);                                    \
    }                                                                                                                \
    REGISTER(rotary_##suffix)

ROTARY(float, f32)
ROTARY(bf16, bf16)
ROTARY(f16, f16)
