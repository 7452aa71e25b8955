// Quantization and dequantization of weights. Two 4-bit codes share a byte, the first in its lower half.
#include "dynamic_map.cuh"
#include "elementwise.cuh"
#include "reductions.cuh"

constexpr int WARPS = BLOCK / 32;
// Numbers that share a scale, and scales that share a scale of their own (double quantization).
constexpr uint32_t NF4_BLOCK = 64;
constexpr uint32_t QUANTIZED = 256;

// NormalFloat4 (Dettmers et al. 2023).
constexpr float NF4[16] = {-1.0f,         -0.6961928f,  -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f,
                           -0.091050036f, 0.0f,         0.0795803f,   0.1609302f,  0.2461123f,   0.33791524f,
                           0.44070983f,   0.562617f,    0.72295684f,  1.0f};

// Code of the nearest value; ties go to the lower code.
__device__ __forceinline__ uint32_t nf4_code(float value, float scale) {
    const float share = scale > 0.0f ? value / scale : 0.0f;
    uint32_t code = 0;
#pragma unroll
    for (int i = 0; i < 15; ++i) code += share > 0.5f * (NF4[i] + NF4[i + 1]);
    return code;
}

// int8 quantization by rows, one block per row: the largest magnitude is 127 steps.
extern "C" __global__ void __launch_bounds__(BLOCK)
    quantize_rows(uint8_t* __restrict__ codes, float* __restrict__ steps, const float* __restrict__ weight,
                  uint32_t columns) {
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * columns;
    float largest = 0.0f;
    float broken = 0.0f;
    for (uint32_t c = threadIdx.x; c < columns; c += BLOCK) {
        const float magnitude = fabsf(weight[start + c]);
        largest = fmaxf(largest, magnitude);
        if (isnan(magnitude)) broken = 1.0f;
    }
    largest = block_max(largest);
    // A row with a NaN gets a NaN step, so that the NaN propagates.
    const float step = block_max(broken) > 0.0f ? not_a_number() : largest / 127.0f;
    if (threadIdx.x == 0) steps[blockIdx.x] = step;
    for (uint32_t c = threadIdx.x; c < columns; c += BLOCK) {
        const float count = step > 0.0f ? rintf(weight[start + c] / step) : 0.0f;
        // With subnormal numbers the step may be rounded down so far that counts exceed 127: hence the clamp.
        codes[start + c] = static_cast<uint8_t>(static_cast<int>(fminf(fmaxf(count, -127.0f), 127.0f)) + 128);
    }
}
REGISTER(quantize_rows)

// NF4 quantization: one quantization block per warp, one pair of numbers per lane.
extern "C" __global__ void __launch_bounds__(BLOCK)
    quantize_blocks(uint8_t* __restrict__ codes, float* __restrict__ scales, const float* __restrict__ weight,
                    uint64_t count) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t block = static_cast<uint64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    // Uniform across the warp.
    if (block * NF4_BLOCK >= count) return;
    const uint64_t place = block * NF4_BLOCK + 2 * lane;
    const float first = place < count ? weight[place] : 0.0f;
    const float second = place + 1 < count ? weight[place + 1] : 0.0f;
    const float largest = warp_max(fmaxf(fabsf(first), fabsf(second)));
    const float broken = warp_max(isnan(first) || isnan(second) ? 1.0f : 0.0f);
    const float scale = broken > 0.0f ? not_a_number() : largest;
    if (lane == 0) scales[block] = scale;
    if (place < count) {
        const uint32_t upper = place + 1 < count ? nf4_code(second, scale) : 0u;
        codes[place / 2] = static_cast<uint8_t>(nf4_code(first, scale) | upper << 4);
    }
}
REGISTER(quantize_blocks)

// of_scales[0] = mean of all scales. One block.
extern "C" __global__ void __launch_bounds__(1024)
    mean_of_scales(float* __restrict__ of_scales, const float* __restrict__ scales, uint64_t count) {
    double sum = 0.0;
    for (uint64_t i = threadIdx.x; i < count; i += blockDim.x) sum += scales[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) of_scales[0] = static_cast<float>(sum / static_cast<double>(count));
}
REGISTER(mean_of_scales)

// Quantizes the scales after subtracting their mean: one block of the grid per block of scales, one scale per thread.
extern "C" __global__ void __launch_bounds__(BLOCK)
    quantize_scales(uint8_t* __restrict__ codes, float* __restrict__ of_scales, const float* __restrict__ scales,
                    uint64_t count) {
    __shared__ Shares<true> shares;
    shares.make<BLOCK>();
    const uint64_t place = static_cast<uint64_t>(blockIdx.x) * QUANTIZED + threadIdx.x;
    const float left = place < count ? scales[place] - of_scales[0] : 0.0f;
    const float scale = block_max(fabsf(left));
    if (threadIdx.x == 0) of_scales[1 + blockIdx.x] = scale;
    if (place < count) codes[place] = static_cast<uint8_t>(Map<true>::code(left, scale, shares.least));
}
REGISTER(quantize_scales)

// Byte `i` of words loaded at once.
template <int Bytes>
struct CodeRun {
    uint32_t words[(Bytes + 3) / 4];

    __device__ __forceinline__ explicit CodeRun(const uint8_t* source) {
        if constexpr (Bytes == 8) {
            const uint2 both = *reinterpret_cast<const uint2*>(source);
            words[0] = both.x, words[1] = both.y;
        } else if constexpr (Bytes == 4) {
            words[0] = *reinterpret_cast<const uint32_t*>(source);
        } else if constexpr (Bytes == 2) {
            words[0] = *reinterpret_cast<const uint16_t*>(source);
        } else {
            words[0] = *source;
        }
    }

    __device__ __forceinline__ uint32_t byte(int i) const { return words[i / 4] >> (8 * (i % 4)) & 255u; }
};

template <class T>
__device__ __forceinline__ void dequantize_rows(T* output, const uint8_t* codes, const float* steps, uint32_t rows,
                                                uint32_t columns) {
    each_run_of_rows<Vector<T>::size>(rows, columns, true, [&](auto run, uint32_t row, uint32_t c) {
        const uint64_t at = static_cast<uint64_t>(row) * columns + c;
        const CodeRun<run.size> bytes(codes + at);
        const float step = steps[row];
        float values[run.size];
#pragma unroll
        for (int i = 0; i < run.size; ++i) values[i] = (static_cast<int>(bytes.byte(i)) - 128) * step;
        store_values(output + at, values);
    });
}

// `scale_of` returns the scale of a quantization block.
template <class T, class Scale>
__device__ __forceinline__ void dequantize_blocks(T* output, const uint8_t* codes, uint64_t count, Scale scale_of) {
    __shared__ float shares[16];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
        if (threadIdx.x == i) shares[i] = NF4[i];
    }
    __syncthreads();
    const float* numbers = shares;
    each_run<T>(count, [&](auto run, uint64_t at) {
        const CodeRun<(run.size + 1) / 2> bytes(codes + at / 2);
        const float scale = scale_of(at / NF4_BLOCK);
        float values[run.size];
#pragma unroll
        for (int i = 0; i < run.size; ++i) {
            // A single number may be the second of its byte.
            const bool is_second = run.size == 1 ? at % 2 : i % 2;
            values[i] = numbers[bytes.byte(i / 2) >> (is_second ? 4 : 0) & 15u] * scale;
        }
        store_values(output + at, values);
    });
}

#define DEQUANTIZE(T, suffix)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        dequantize_rows_##suffix(T* __restrict__ output, const uint8_t* __restrict__ codes,                          \
                                 const float* __restrict__ steps, uint32_t rows, uint32_t columns) {                 \
        dequantize_rows(output, codes, steps, rows, columns);                                                        \
    }                                                                                                                \
    REGISTER(dequantize_rows_##suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        dequantize_blocks_##suffix(T* __restrict__ output, const uint8_t* __restrict__ codes,                        \
                                   const float* __restrict__ scales, uint64_t count) {                               \
        dequantize_blocks(output, codes, count, [&](uint64_t block) { return scales[block]; });                      \
    }                                                                                                                \
    REGISTER(dequantize_blocks_##suffix)                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        dequantize_twice_##suffix(T* __restrict__ output, const uint8_t* __restrict__ codes,                         \
                                  const uint8_t* __restrict__ scales, const float* __restrict__ of_scales,           \
                                  uint64_t count) {                                                                  \
        dequantize_blocks(output, codes, count, [&](uint64_t block) {                                                \
            return Map<true>::share(scales[block]) * of_scales[1 + block / QUANTIZED] + of_scales[0];                \
        });                                                                                                          \
    }                                                                                                                \
    REGISTER(dequantize_twice_##suffix)

DEQUANTIZE(float, f32)
DEQUANTIZE(bf16, bf16)
DEQUANTIZE(f16, f16)
