// Initialisation with constants and random numbers.
//
// Elements 4j to 4j + 3 come from one block of Philox4x32-10 (Salmon et al. 2011), with counter (low half of j, high
// half of j, site, 0) and the seed as key, as on the CPU. The words (a, b, c, d) form the pairs (a, b) and (c, d), and
// each pair (u, v) gives two normal numbers, r cos t and r sin t with r = sqrt(-2 ln((u + 1) / 2^32)) and t = 2 pi v /
// 2^32 (Box and Muller 1958), in f64.
#include "philox.cuh"
#include "vectors.cuh"

constexpr double UNIT = 1.0 / 4294967296.0;

// Stores the first `left` of four values.
template <class T>
__device__ __forceinline__ void store_up_to_four(T* sink, const float (&values)[4], uint64_t left) {
    if (left >= 4) {
        store_quad(sink, make_float4(values[0], values[1], values[2], values[3]));
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 3; ++i) {
            if (i < left) sink[i] = from_float<T>(values[i]);
        }
    }
}

#define FILL(T, suffix)                                                                                              \
    extern "C" __global__ void fill_##suffix(T* output, uint64_t count, float value) {                               \
        const uint64_t start = 4 * (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x);                   \
        if (start < count) store_up_to_four(output + start, {value, value, value, value}, count - start);            \
    }                                                                                                                \
    REGISTER(fill_##suffix)

FILL(float, f32)
FILL(bf16, bf16)
FILL(f16, f16)

// Sets memory to zero bytes, whatever its type.
extern "C" __global__ void zeros(uint8_t* output, uint64_t bytes) {
    const uint64_t start = 16 * (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x);
    if (start + 16 <= bytes) {
        *reinterpret_cast<uint4*>(output + start) = make_uint4(0, 0, 0, 0);
    } else {
        for (uint64_t i = start; i < bytes; ++i) output[i] = 0;
    }
}
REGISTER(zeros)

// Two normal numbers with mean 0.
__device__ __forceinline__ void box_muller(float* numbers, uint32_t u, uint32_t v, double deviation) {
    const double radius = sqrt(-2.0 * log((u + 1.0) * UNIT));
    double sine, cosine;
    sincospi(2.0 * UNIT * v, &sine, &cosine);
    numbers[0] = static_cast<float>(radius * cosine * deviation);
    numbers[1] = static_cast<float>(radius * sine * deviation);
}

template <class T>
__device__ __forceinline__ void draw_normal(T* output, uint64_t count, float deviation, uint64_t seed, uint32_t site) {
    const uint64_t block = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * block >= count) return;
    const uint4 words = philox(block, site, 0, seed);
    float numbers[4];
    box_muller(numbers, words.x, words.y, deviation);
    box_muller(numbers + 2, words.z, words.w, deviation);
    store_up_to_four(output + 4 * block, numbers, count - 4 * block);
}

#define NORMAL(T, suffix)                                                                                            \
    extern "C" __global__ void normal_##suffix(T* output, uint64_t count, float deviation, uint64_t seed,            \
                                               uint32_t site) {                                                      \
        draw_normal(output, count, deviation, seed, site);                                                           \
    }                                                                                                                \
    REGISTER(normal_##suffix)

NORMAL(float, f32)
NORMAL(bf16, bf16)
NORMAL(f16, f16)
