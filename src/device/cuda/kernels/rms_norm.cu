// Root-mean-square normalisation over rows of C channels, and its gradient.
#include "reductions.cuh"

constexpr int BLOCK = 256;
// Rows whose sums of dweight are added up in one partial sum, by one block.
constexpr uint32_t ROWS_PER_PARTIAL = 64;

// One block per row, which it reads twice.
template <class T, class X>
__device__ __forceinline__ void forward(T* y, float* rrms, const X* x, const float* weight, uint32_t channels,
                                        float offset, float epsilon) {
    x += static_cast<uint64_t>(blockIdx.x) * channels;
    y += static_cast<uint64_t>(blockIdx.x) * channels;
    float squares = 0.0f;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) squares += to_float(x[c]) * to_float(x[c]);
    const float scale = 1.0f / sqrtf(block_sum(squares) / channels + epsilon);
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
        y[c] = from_float<T>(to_float(x[c]) * scale * (weight[c] + offset));
    }
    if (threadIdx.x == 0) rrms[blockIdx.x] = scale;
}

// One block takes the rows of one partial sum, one after the other. Each thread keeps to its channels, so that it adds
// to partial sums of its own. `so_far` may be null, or `dx` itself; `cast`, where dx goes rounded to T, may be null, or
// `dy` itself.
template <class T, class X>
__device__ __forceinline__ void backward(X* dx, float* partials, const T* dy, const X* x, const float* weight,
                                         const float* rrms, const X* so_far, T* cast, uint32_t rows,
                                         uint32_t channels, float offset) {
    float* dweight = partials + static_cast<uint64_t>(blockIdx.x) * channels;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) dweight[c] = 0.0f;
    const uint32_t first = blockIdx.x * ROWS_PER_PARTIAL;
    for (uint32_t row = first; row < min(rows, first + ROWS_PER_PARTIAL); ++row) {
        const uint64_t start = static_cast<uint64_t>(row) * channels;
        float along = 0.0f;
        for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
            const float d = to_float(dy[start + c]), normal = to_float(x[start + c]) * rrms[row];
            dweight[c] += d * normal;
            along += d * (weight[c] + offset) * normal;
        }
        along = block_sum(along) / channels;
        for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
            const float normal = to_float(x[start + c]) * rrms[row];
            const float slope = to_float(dy[start + c]) * (weight[c] + offset);
            const float before = so_far == nullptr ? 0.0f : to_float(so_far[start + c]);
            const float d = before + rrms[row] * (slope - normal * along);
            dx[start + c] = from_float<X>(d);
            if (cast != nullptr) cast[start + c] = from_float<T>(d);
        }
    }
}

// With the registers of eight blocks to a multiprocessor, the gradient would spill on sm_100.
#define RMS_NORM(T, X, suffix)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        rms_norm_##suffix(T* __restrict__ y, float* __restrict__ rrms, const X* __restrict__ x,                      \
                          const float* __restrict__ weight, uint32_t channels, float offset, float epsilon) {        \
        forward(y, rrms, x, weight, channels, offset, epsilon);                                                      \
    }                                                                                                                \
    REGISTER(rms_norm_##suffix)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        rms_norm_backward_##suffix(X* dx, float* __restrict__ partials, const T* dy, const X* __restrict__ x,        \
                                   const float* __restrict__ weight, const float* __restrict__ rrms,                 \
                                   const X* so_far, T* cast, uint32_t rows, uint32_t channels, float offset) {       \
        backward(dx, partials, dy, x, weight, rrms, so_far, cast, rows, channels, offset);                           \
    }                                                                                                                \
    REGISTER(rms_norm_backward_##suffix)

RMS_NORM(float, float, f32)
RMS_NORM(bf16, float, bf16)
RMS_NORM(f16, float, f16)
RMS_NORM(bf16, bf16, bf16_bf16)
RMS_NORM(f16, f16, f16_f16)
