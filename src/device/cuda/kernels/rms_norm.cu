// Root-mean-square normalisation over rows of C channels, and its gradient.
//
// A group of 1, 2, 4 or 8 warps, the smallest that suffices, holds a row in registers. Rows that are too wide, or that
// do not start at multiples of four elements, use kernels that read them twice (`rms_norm_any`).
#include "held_rows.cuh"

__device__ __forceinline__ float4 scaled(float4 v, float factor) {
    return make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

__device__ __forceinline__ float4 product(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

// Loads four weights and adds `offset`.
__device__ __forceinline__ float4 load_weight(const float* weight, float offset) {
    const float4 w = load_quad(weight);
    return make_float4(w.x + offset, w.y + offset, w.z + offset, w.w + offset);
}

template <class T, int Warps, class X>
__device__ __forceinline__ void forward(T* y, float* rrms, const X* x, const float* weight, uint32_t rows,
                                        uint32_t channels, float offset, float epsilon) {
    constexpr uint32_t STEP = 32 * Warps * 4;
    const uint32_t row = blockIdx.x * (BLOCK_WARPS / Warps) + threadIdx.x / (32 * Warps);
    const uint32_t first = threadIdx.x % (32 * Warps) * 4;
    // A group without a row loads nothing, but must reach the barriers.
    const uint32_t end = row < rows ? channels : 0;
    const uint64_t start = static_cast<uint64_t>(row) * channels;
    float4 values[QUADS];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = first + i * STEP;
        values[i] = c < end ? load_quad(x + start + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < QUADS; ++i) squares += inner_product(values[i], values[i]);
    const float scale = 1.0f / sqrtf(group_sums<Warps>(squares, 0.0f).x / channels + epsilon);
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = first + i * STEP;
        if (c < end) {
            store_quad(y + start + c, product(scaled(values[i], scale), load_weight(weight + c, offset)));
        }
    }
    if (row < rows && first == 0) rrms[row] = scale;
}

// One block per row, which it reads twice.
template <class T, class X>
__device__ __forceinline__ void forward_any(T* y, float* rrms, const X* x, const float* weight, uint32_t channels,
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

// A block processes the rows of one partial sum of dweight, a multiple of four; its GROUPS groups of warps take them in
// turn. `so_far` may be null, or `dx` itself; `cast`, which receives dx rounded to T, may be null, or `dy` itself.
template <class T, int Warps, class X>
__device__ __forceinline__ void backward(X* dx, float* partials, const T* dy, const X* x, const float* weight,
                                         const float* rrms, const X* so_far, T* cast, uint32_t rows,
                                         uint32_t channels, float offset, uint32_t rows_per_partial) {
    constexpr uint32_t GROUPS = BLOCK_WARPS / Warps;
    constexpr uint32_t STEP = 32 * Warps * 4;
    DYN_SHARED(float, group_partials);
    const uint32_t group = threadIdx.x / (32 * Warps);
    const uint32_t begin = threadIdx.x % (32 * Warps) * 4;
    float4 dweight[QUADS] = {};
    for (uint32_t i = group; i < rows_per_partial; i += GROUPS) {
        const uint32_t row = blockIdx.x * rows_per_partial + i;
        // Groups of several warps do not leave early: they share barriers.
        if (Warps == 1 && row >= rows) break;
        const uint32_t end = row < rows ? channels : 0;
        const uint64_t start = static_cast<uint64_t>(row) * channels;
        const float scale = row < rows ? rrms[row] : 0.0f;
        float4 normals[QUADS];
        float4 slopes[QUADS];
        float along = 0.0f;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const uint32_t c = begin + q * STEP;
            const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            normals[q] = c < end ? load_quad(x + start + c) : zero;
            slopes[q] = c < end ? load_quad(dy + start + c) : zero;
        }
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const uint32_t c = begin + q * STEP;
            if (c < end) {
                normals[q] = scaled(normals[q], scale);
                const float4 added = product(slopes[q], normals[q]);
                dweight[q].x += added.x;
                dweight[q].y += added.y;
                dweight[q].z += added.z;
                dweight[q].w += added.w;
                slopes[q] = product(slopes[q], load_weight(weight + c, offset));
                along += inner_product(slopes[q], normals[q]);
            }
        }
        along = group_sums<Warps>(along, 0.0f).x / channels;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const uint32_t c = begin + q * STEP;
            if (c < end) {
                const float4 n = normals[q], s = slopes[q];
                float4 d = make_float4(scale * (s.x - n.x * along), scale * (s.y - n.y * along),
                                       scale * (s.z - n.z * along), scale * (s.w - n.w * along));
                if (so_far != nullptr) {
                    const float4 other = load_quad(so_far + start + c);
                    d = make_float4(other.x + d.x, other.y + d.y, other.z + d.z, other.w + d.w);
                }
                store_quad(dx + start + c, d);
                if (cast != nullptr) store_quad(cast + start + c, d);
            }
        }
    }
#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const uint32_t c = begin + q * STEP;
        if (c < channels) store_quad(group_partials + group * channels + c, dweight[q]);
    }
    __syncthreads();
    partials += static_cast<uint64_t>(blockIdx.x) * channels;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t other = 0; other < GROUPS; ++other) sum += group_partials[other * channels + c];
        partials[c] = sum;
    }
}

// The same with partial sums in global memory, each updated by a single thread, and with rows that are read twice.
template <class T, class X>
__device__ __forceinline__ void backward_any(X* dx, float* partials, const T* dy, const X* x, const float* weight,
                                             const float* rrms, const X* so_far, T* cast, uint32_t rows,
                                             uint32_t channels, float offset, uint32_t rows_per_partial) {
    float* dweight = partials + static_cast<uint64_t>(blockIdx.x) * channels;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) dweight[c] = 0.0f;
    const uint32_t first = blockIdx.x * rows_per_partial;
    for (uint32_t row = first; row < min(rows, first + rows_per_partial); ++row) {
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

#define RMS_NORM_HELD(T, X, suffix, Warps)                                                                           \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) rms_norm_##suffix##_##Warps(                              \
        T* __restrict__ y, float* __restrict__ rrms, const X* __restrict__ x, const float* __restrict__ weight,      \
        uint32_t rows, uint32_t channels, float offset, float epsilon) {                                             \
        forward<T, Warps>(y, rrms, x, weight, rows, channels, offset, epsilon);                                      \
    }                                                                                                                \
    REGISTER(rms_norm_##suffix##_##Warps)                                                                            \
    extern "C" __global__ void __launch_bounds__(BLOCK, 2) rms_norm_backward_##suffix##_##Warps(                     \
        X* dx, float* __restrict__ partials, const T* dy, const X* __restrict__ x, const float* __restrict__ weight, \
        const float* __restrict__ rrms, const X* so_far, T* cast, uint32_t rows, uint32_t channels, float offset,    \
        uint32_t rows_per_partial) {                                                                                 \
        backward<T, Warps>(dx, partials, dy, x, weight, rrms, so_far, cast, rows, channels, offset,                  \
                           rows_per_partial);                                                                        \
    }                                                                                                                \
    REGISTER(rms_norm_backward_##suffix##_##Warps)

// At eight blocks per multiprocessor, the last kernel would spill registers on sm_100.
#define RMS_NORM(T, X, suffix)                                                                                       \
    RMS_NORM_HELD(T, X, suffix, 1)                                                                                   \
    RMS_NORM_HELD(T, X, suffix, 2)                                                                                   \
    RMS_NORM_HELD(T, X, suffix, 4)                                                                                   \
    RMS_NORM_HELD(T, X, suffix, 8)                                                                                   \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) rms_norm_##suffix##_any(                                  \
        T* __restrict__ y, float* __restrict__ rrms, const X* __restrict__ x, const float* __restrict__ weight,      \
        uint32_t channels, float offset, float epsilon) {                                                            \
        forward_any(y, rrms, x, weight, channels, offset, epsilon);                                                  \
    }                                                                                                                \
    REGISTER(rms_norm_##suffix##_any)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) rms_norm_backward_##suffix##_any(                         \
        X* dx, float* __restrict__ partials, const T* dy, const X* __restrict__ x, const float* __restrict__ weight, \
        const float* __restrict__ rrms, const X* so_far, T* cast, uint32_t rows, uint32_t channels, float offset,    \
        uint32_t rows_per_partial) {                                                                                 \
        backward_any(dx, partials, dy, x, weight, rrms, so_far, cast, rows, channels, offset, rows_per_partial);     \
    }                                                                                                                \
    REGISTER(rms_norm_backward_##suffix##_any)

RMS_NORM(float, float, f32)
RMS_NORM(bf16, float, bf16)
RMS_NORM(f16, float, f16)
RMS_NORM(bf16, bf16, bf16_bf16)
RMS_NORM(f16, f16, f16_f16)
