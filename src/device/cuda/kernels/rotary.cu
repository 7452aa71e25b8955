// Rotary position embedding of queries and keys.
#include "vectors.cuh"

constexpr int BLOCK = 256;
constexpr int PAIRS = 128;

// Angle per position, in radians, of each pair of channels of a head.
struct Frequencies {
    float of[PAIRS];
};

// Rotates runs of `Width` pairs of the first `heads` heads, each with `half` pairs. `turns` [half] holds the cosine and sine
// of each pair.
template <int Width, class T>
__device__ __forceinline__ void rotate(T* rotated, const T* qkv, const float2* turns, uint32_t heads, uint32_t head,
                                       uint32_t half) {
    const uint32_t runs = half / Width;
    uint32_t which = threadIdx.x / runs, run = threadIdx.x % runs;
    while (which < heads) {
        const uint32_t pair = run * Width, first = which * head + pair;
        float x[Width], y[Width];
        load_values(x, qkv + first);
        load_values(y, qkv + first + half);
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            const float cosine = turns[pair + i].x, sine = turns[pair + i].y;
            const float before = x[i];
            x[i] = before * cosine - y[i] * sine;
            y[i] = y[i] * cosine + before * sine;
        }
        store_values(rotated + first, x);
        store_values(rotated + first + half, y);
        // BLOCK runs further, without a division.
        which += BLOCK / runs;
        run += BLOCK % runs;
        if (run >= runs) run -= runs, ++which;
    }
}

// One block per row: the first `channels` channels of the first `heads` heads are rotated, the others are copied.
// `rotated` may be `qkv`.
template <class T>
__device__ __forceinline__ void rotary(T* rotated, const T* qkv, const Frequencies& frequencies, uint32_t sequence,
                                       uint32_t width, uint32_t heads, uint32_t head, uint32_t channels,
                                       uint32_t inverse) {
    rotated += static_cast<uint64_t>(blockIdx.x) * width;
    qkv += static_cast<uint64_t>(blockIdx.x) * width;
    const float position = static_cast<float>(blockIdx.x % sequence);
    const uint32_t half = channels / 2;
    // Cosine and sine of each pair: the same for all heads of a position.
    __shared__ float2 turns[PAIRS];
    if (threadIdx.x < half) {
        float sine, cosine;
        sincosf(position * frequencies.of[threadIdx.x], &sine, &cosine);
        turns[threadIdx.x] = make_float2(cosine, inverse != 0 ? -sine : sine);
    }
    __syncthreads();
    constexpr uint32_t WIDTH = Vector<T>::size;
    const bool whole = half % WIDTH == 0 && head % WIDTH == 0 && width % WIDTH == 0;
    if (whole) {
        rotate<WIDTH>(rotated, qkv, turns, heads, head, half);
    } else {
        rotate<1>(rotated, qkv, turns, heads, head, half);
    }
    if (rotated == qkv) return;
    const uint32_t still = head - channels;
    for (uint32_t item = threadIdx.x; item < heads * still; item += BLOCK) {
        const uint32_t c = item / still * head + channels + item % still;
        rotated[c] = qkv[c];
    }
    const uint32_t rest = heads * head;
    if (whole) {
        for (uint32_t c = rest + threadIdx.x * WIDTH; c < width; c += BLOCK * WIDTH) {
            store_vector(rotated + c, load_vector(qkv + c));
        }
    } else {
        for (uint32_t c = rest + threadIdx.x; c < width; c += BLOCK) rotated[c] = qkv[c];
    }
}

#define ROTARY(T, suffix)                                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        rotary_##suffix(T* rotated, const T* qkv, const Frequencies frequencies, uint32_t sequence, uint32_t width,  \
                        uint32_t heads, uint32_t head, uint32_t channels, uint32_t inverse) {                        \
        rotary(rotated, qkv, frequencies, sequence, width, heads, head, channels, inverse);                          \
    }                                                                                                                \
    REGISTER(rotary_##suffix)

ROTARY(float, f32)
ROTARY(bf16, bf16)
ROTARY(f16, f16)
