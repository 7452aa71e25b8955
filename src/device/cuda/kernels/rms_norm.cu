// Root-mean-square normalisation over rows of C channels, and its gradient.
//
// A block holds a row in registers and reads it once. Rows that are too wide, or that do not start at multiples of four
// elements, use kernels that read them twice (`rms_norm_any`).
#include "held_rows.cuh"

// Rows per partial sum of dweight; one block computes one partial sum.
constexpr uint32_t ROWS_PER_PARTIAL = 64;
// Distance in channels between the groups of four that a thread holds.
constexpr uint32_t STEP = 4 * BLOCK;

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

// One block per row.
template <class T, class X>
__device__ __forceinline__ void forward(T* y, float* rrms, const X* x, const float* weight, uint32_t channels,
                                        float offset, float epsilon) {
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * channels;
    const uint32_t first = 4 * threadIdx.x;
    float4 values[QUADS];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = first + i * STEP;
        values[i] = c < channels ? load_quad(x + start + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < QUADS; ++i) squares += inner_product(values[i], values[i]);
    const float scale = 1.0f / sqrtf(block_sum(squares) / channels + epsilon);
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = first + i * STEP;
        if (c < channels) {
            store_quad(y + start + c, product(scaled(values[i], scale), load_weight(weight + c, offset)));
        }
    }
    if (threadIdx.x == 0) rrms[blockIdx.x] = scale;
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

// One block processes the rows of one partial sum in order. Each thread always processes the same channels and holds
// their sums. `so_far` may be null, or `dx` itself; `cast`, which receives dx rounded to T, may be null, or `dy`
// itself.
template <class T, class X>
__device__ __forceinline__ void backward(X* dx, float* partials, const T* dy, const X* x, const float* weight,
                                         const float* rrms, const X* so_far, T* cast, uint32_t rows,
                                         uint32_t channels, float offset) {
    const uint32_t begin = 4 * threadIdx.x;
    const uint32_t first = blockIdx.x * ROWS_PER_PARTIAL;
    float4 dweight[QUADS] = {};
    for (uint32_t row = first; row < min(rows, first + ROWS_PER_PARTIAL); ++row) {
        const uint64_t start = static_cast<uint64_t>(row) * channels;
        const float scale = rrms[row];
        float4 normals[QUADS];
        float4 slopes[QUADS];
        float along = 0.0f;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const uint32_t c = begin + i * STEP;
            const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            normals[i] = c < channels ? load_quad(x + start + c) : zero;
            slopes[i] = c < channels ? load_quad(dy + start + c) : zero;
        }
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const uint32_t c = begin + i * STEP;
            if (c < channels) {
                normals[i] = scaled(normals[i], scale);
                const float4 added = product(slopes[i], normals[i]);
                dweight[i].x += added.x;
                dweight[i].y += added.y;
                dweight[i].z += added.z;
                dweight[i].w += added.w;
                slopes[i] = product(slopes[i], load_weight(weight + c, offset));
                along += inner_product(slopes[i], normals[i]);
            }
        }
        along = block_sum(along) / channels;
#pragma unroll
        for (int i = 0; i < QUADS; ++i) {
            const uint32_t c = begin + i * STEP;
            if (c < channels) {
                const float4 n = normals[i], s = slopes[i];
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
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = begin + i * STEP;
        if (c < channels) store_quad(partials + static_cast<uint64_t>(blockIdx.x) * channels + c, dweight[i]);
    }
}

// The same with partial sums in global memory, each updated by a single thread, and with rows that are read twice.
template <class T, class X>
__device__ __forceinline__ void backward_any(X* dx, float* partials, const T* dy, const X* x, const float* weight,
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

// `HOW` is empty or _any. At eight blocks per multiprocessor, the gradient would spill registers on sm_100; at six, the
// gradient of a held row would with one version of NVRTC.
#define RMS_NORM_HOW(T, X, suffix, HOW, BLOCKS)                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) rms_norm_##suffix##HOW(                                   \
        T* __restrict__ y, float* __restrict__ rrms, const X* __restrict__ x, const float* __restrict__ weight,      \
        uint32_t channels, float offset, float epsilon) {                                                            \
        forward##HOW(y, rrms, x, weight, channels, offset, epsilon);                                                 \
    }                                                                                                                \
    REGISTER(rms_norm_##suffix##HOW)                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) rms_norm_backward_##suffix##HOW(                     \
        X* dx, float* __restrict__ partials, const T* dy, const X* __restrict__ x, const float* __restrict__ weight, \
        const float* __restrict__ rrms, const X* so_far, T* cast, uint32_t rows, uint32_t channels, float offset) {  \
        backward##HOW(dx, partials, dy, x, weight, rrms, so_far, cast, rows, channels, offset);                      \
    }                                                                                                                \
    REGISTER(rms_norm_backward_##suffix##HOW)

#define RMS_NORM(T, X, suffix)             \
    RMS_NORM_HOW(T, X, suffix, , 2)        \
    RMS_NORM_HOW(T, X, suffix, _any, 4)

RMS_NORM(float, float, f32)
RMS_NORM(bf16, float, bf16)
RMS_NORM(f16, float, f16)
RMS_NORM(bf16, bf16, bf16_bf16)
RMS_NORM(f16, f16, f16_f16)
