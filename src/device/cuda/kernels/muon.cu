// Muon before its matrix products: divides a matrix by its norm, and rounds it to the type of the products.
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int BLOCK = 256;

// Number of partial sums of squares.
constexpr uint32_t SUMS = 128;

// One block per partial sum.
extern "C" __global__ void __launch_bounds__(BLOCK)
    muon_squares(double* __restrict__ sums, const float* __restrict__ direction, uint64_t count) {
    const uint64_t each = (count + SUMS - 1) / SUMS;
    const uint64_t begin = min(count, blockIdx.x * each);
    const uint64_t end = min(count, begin + each);
    double sum = 0.0;
#pragma unroll 4
    for (uint64_t i = begin + threadIdx.x; i < end; i += BLOCK) {
        const double value = direction[i];
        sum += value * value;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
REGISTER(muon_squares)

// factors = direction / max(norm, least)
template <class T>
__device__ __forceinline__ void normalise(T* factors, const float* direction, const double* sums, float least,
                                          uint64_t count) {
    const float norm = static_cast<float>(sqrt(block_sum(threadIdx.x < SUMS ? sums[threadIdx.x] : 0.0)));
    // NaN must propagate to the parameters.
    const float divisor = norm < least ? least : norm;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * BLOCK;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x; i < count; i += stride) {
        factors[i] = from_float<T>(direction[i] / divisor);
    }
}

#define NORMALISE(T, suffix)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        muon_normalise_##suffix(T* __restrict__ factors, const float* __restrict__ direction,                        \
                                const double* __restrict__ sums, float least, uint64_t count) {                      \
        normalise<T>(factors, direction, sums, least, count);                                                        \
    }                                                                                                                \
    REGISTER(muon_normalise_##suffix)

NORMALISE(float, f32)
NORMALISE(bf16, bf16)
NORMALISE(f16, f16)
