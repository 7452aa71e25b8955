// Pixels in u8 to numbers.
#include "compat.cuh"

constexpr int BLOCK = 256;
constexpr int SINGLES = 4;

// For pixels of channel c: x * factor, if `factor` is not 0, else (x / 255 - mean) / deviation of the channel. A sample has
// `length` pixels, and each of its channels `plane`. With `weights`, samples of weight 0 become zeros.
extern "C" __global__ void __launch_bounds__(BLOCK) cast_pixels(
    float* __restrict__ output, const uint8_t* __restrict__ input, const float* __restrict__ weights, uint64_t count,
    uint64_t length, uint64_t plane, float factor, float mean_0, float mean_1, float mean_2, float deviation_0,
    float deviation_1, float deviation_2) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * SINGLES + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SINGLES; ++i) {
        const uint64_t at = first + static_cast<uint64_t>(i) * BLOCK;
        if (at >= count) return;
        const uint64_t sample = at / length;
        const uint64_t channel = (at - sample * length) / plane;
        const float pixel = static_cast<float>(input[at]);
        const float mean = channel == 0 ? mean_0 : channel == 1 ? mean_1 : mean_2;
        const float deviation = channel == 0 ? deviation_0 : channel == 1 ? deviation_1 : deviation_2;
        const float number = factor != 0.0f ? pixel * factor : (pixel / 255.0f - mean) / deviation;
        output[at] = weights && weights[sample] == 0.0f ? 0.0f : number;
    }
}
REGISTER(cast_pixels)
