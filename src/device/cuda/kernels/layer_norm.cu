// Layer normalisation over rows of C channels, and its gradient.
//
// A group of 1, 2, 4 or 8 warps, the smallest that suffices, holds a row in registers. Rows that are too wide, or that
// do not start at multiples of four elements, use kernels that read them several times (`layer_norm_any`).
#include "held_rows.cuh"

// (x - mean) * rstd
__device__ __forceinline__ float4 normalised(float4 x, float mean, float rstd) {
    return make_float4((x.x - mean) * rstd, (x.y - mean) * rstd, (x.z - mean) * rstd, (x.w - mean) * rstd);
}

template <class T, int Warps, class X>
__device__ __forceinline__ void forward(T* y, float* mean, float* rstd, const X* x, const float* weight,
                                        const float* bias, uint32_t rows, uint32_t channels, float epsilon) {
    constexpr uint32_t STEP = 32 * Warps * 4;
    const uint32_t row = blockIdx.x * (BLOCK_WARPS / Warps) + threadIdx.x / (32 * Warps);
    const uint32_t first = threadIdx.x % (32 * Warps) * 4;
    // A group without a row loads nothing, but must reach the barriers.
    const uint32_t end = row < rows ? channels : 0;
    const uint64_t start = static_cast<uint64_t>(row) * channels;

    float4 values[QUADS];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = first + i * STEP;
        values[i] = c < end ? load_quad(x + start + c) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < QUADS; ++i) sum += sum_of(values[i]);
    const float centre = group_sums<Warps>(sum, 0.0f).x / channels;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const float4 apart = normalised(values[i], centre, 1.0f);
        if (first + i * STEP < end) squares += inner_product(apart, apart);
    }
    const float scale = 1.0f / sqrtf(group_sums<Warps>(squares, 0.0f).x / channels + epsilon);
#pragma unroll
    for (int i = 0; i < QUADS; ++i) {
        const uint32_t c = first + i * STEP;
        if (c < end) {
            const float4 normal = normalised(values[i], centre, scale);
            const float4 w = load_quad(weight + c);
            const float4 b = load_quad(bias + c);
            store_quad(y + start + c, make_float4(normal.x * w.x + b.x, normal.y * w.y + b.y,
                                                  normal.z * w.z + b.z, normal.w * w.w + b.w));
        }
    }
    if (row < rows && first == 0) {
        mean[row] = centre;
        rstd[row] = scale;
    }
}

// One block per row, which it reads three times.
template <class T, class X>
__device__ __forceinline__ void forward_any(T* y, float* mean, float* rstd, const X* x, const float* weight,
                                            const float* bias, uint32_t channels, float epsilon) {
    x += static_cast<uint64_t>(blockIdx.x) * channels;
    y += static_cast<uint64_t>(blockIdx.x) * channels;
    float sum = 0.0f;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) sum += to_float(x[c]);
    const float centre = block_sum(sum) / channels;
    float squares = 0.0f;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
        const float apart = to_float(x[c]) - centre;
        squares += apart * apart;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / channels + epsilon);
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
        y[c] = from_float<T>((to_float(x[c]) - centre) * scale * weight[c] + bias[c]);
    }
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = centre;
        rstd[blockIdx.x] = scale;
    }
}

// A block processes the rows of one partial sum, a multiple of four; its GROUPS groups of warps take them in turn.
// `so_far` may be null, or
// `dx` itself; `cast`, which receives dx rounded to T, may be null, or `dy` itself.
template <class T, int Warps, class X>
__device__ __forceinline__ void backward(X* dx, float* partials, const T* dy, const X* x, const float* weight,
                                         const float* mean, const float* rstd, const X* so_far, T* cast,
                                         uint32_t rows, uint32_t channels, uint32_t rows_per_partial) {
    constexpr uint32_t GROUPS = BLOCK_WARPS / Warps;
    constexpr uint32_t STEP = 32 * Warps * 4;
    DYN_SHARED(float, group_partials);
    const uint32_t group = threadIdx.x / (32 * Warps);
    const uint32_t first = threadIdx.x % (32 * Warps) * 4;
    // Shared memory buffer for the row of `so_far`, because registers are full. It is the space of the group's partial
    // sums, and each thread reads only what it has written itself.
    float* waiting = group_partials + 2 * group * channels;
    float4 dweight[QUADS] = {};
    float4 dbias[QUADS] = {};

    for (uint32_t i = group; i < rows_per_partial; i += GROUPS) {
        const uint32_t row = blockIdx.x * rows_per_partial + i;
        // Groups of several warps do not leave early: they share barriers.
        if (Warps == 1 && row >= rows) break;
        const uint32_t end = row < rows ? channels : 0;
        const uint64_t start = static_cast<uint64_t>(row) * channels;
        const float row_mean = row < rows ? mean[row] : 0.0f;
        const float row_rstd = row < rows ? rstd[row] : 0.0f;
        float4 normals[QUADS];
        float4 slopes[QUADS];
        float through = 0.0f;
        float along = 0.0f;
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const uint32_t c = first + q * STEP;
            const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            normals[q] = c < end ? load_quad(x + start + c) : zero;
            slopes[q] = c < end ? load_quad(dy + start + c) : zero;
        }
        // Asynchronous copy, which overlaps the sums. 16-bit rows are loaded directly: four channels are less than the
        // 16 bytes of a cp.async.
        if (sizeof(X) == 4 && so_far != nullptr) {
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                const uint32_t c = first + q * STEP;
                if (c < end) cp_async16(waiting + c, so_far + start + c);
            }
            cp_commit();
        }
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const uint32_t c = first + q * STEP;
            if (c < end) {
                const float4 normal = normalised(normals[q], row_mean, row_rstd);
                const float4 d = slopes[q];
                const float4 w = load_quad(weight + c);
                dweight[q].x += d.x * normal.x;
                dweight[q].y += d.y * normal.y;
                dweight[q].z += d.z * normal.z;
                dweight[q].w += d.w * normal.w;
                dbias[q].x += d.x;
                dbias[q].y += d.y;
                dbias[q].z += d.z;
                dbias[q].w += d.w;
                normals[q] = normal;
                slopes[q] = make_float4(d.x * w.x, d.y * w.y, d.z * w.z, d.w * w.w);
                through += sum_of(slopes[q]);
                along += inner_product(slopes[q], normal);
            }
        }
        const float2 sums = group_sums<Warps>(through, along);
        through = sums.x / channels;
        along = sums.y / channels;
        if (sizeof(X) == 4 && so_far != nullptr) cp_wait(0);
#pragma unroll
        for (int q = 0; q < QUADS; ++q) {
            const uint32_t c = first + q * STEP;
            if (c < end) {
                const float4 n = normals[q];
                const float4 s = slopes[q];
                float4 d = make_float4(
                    row_rstd * (s.x - through - n.x * along), row_rstd * (s.y - through - n.y * along),
                    row_rstd * (s.z - through - n.z * along), row_rstd * (s.w - through - n.w * along));
                if (so_far != nullptr) {
                    const float4 other = sizeof(X) == 4 ? load_quad(waiting + c) : load_quad(so_far + start + c);
                    d = make_float4(other.x + d.x, other.y + d.y, other.z + d.z, other.w + d.w);
                }
                store_quad(dx + start + c, d);
                if (cast != nullptr) store_quad(cast + start + c, d);
            }
        }
    }

#pragma unroll
    for (int q = 0; q < QUADS; ++q) {
        const uint32_t c = first + q * STEP;
        if (c < channels) {
            store_quad(group_partials + 2 * group * channels + c, dweight[q]);
            store_quad(group_partials + (2 * group + 1) * channels + c, dbias[q]);
        }
    }
    __syncthreads();
    partials += static_cast<uint64_t>(blockIdx.x) * 2 * channels;
    for (uint32_t c = threadIdx.x; c < 2 * channels; c += BLOCK) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t other = 0; other < GROUPS; ++other) sum += group_partials[2 * other * channels + c];
        partials[c] = sum;
    }
}

// One block processes the rows of one partial sum in order. Each thread always processes the same channels, so no other
// thread adds to its partial sums.
template <class T, class X>
__device__ __forceinline__ void backward_any(X* dx, float* partials, const T* dy, const X* x,
                                             const float* weight, const float* mean, const float* rstd,
                                             const X* so_far, T* cast, uint32_t rows, uint32_t channels,
                                             uint32_t rows_per_partial) {
    float* dweight = partials + static_cast<uint64_t>(blockIdx.x) * 2 * channels;
    float* dbias = dweight + channels;
    for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) dweight[c] = dbias[c] = 0.0f;
    const uint32_t first = blockIdx.x * rows_per_partial;
    for (uint32_t row = first; row < min(rows, first + rows_per_partial); ++row) {
        const uint64_t start = static_cast<uint64_t>(row) * channels;
        float through = 0.0f;
        float along = 0.0f;
        for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
            const float d = to_float(dy[start + c]);
            const float normal = (to_float(x[start + c]) - mean[row]) * rstd[row];
            dweight[c] += d * normal;
            dbias[c] += d;
            through += d * weight[c];
            along += d * weight[c] * normal;
        }
        through = block_sum(through) / channels;
        along = block_sum(along) / channels;
        for (uint32_t c = threadIdx.x; c < channels; c += BLOCK) {
            const float normal = (to_float(x[start + c]) - mean[row]) * rstd[row];
            const float slope = to_float(dy[start + c]) * weight[c];
            const float before = so_far == nullptr ? 0.0f : to_float(so_far[start + c]);
            const float d = before + rstd[row] * (slope - through - normal * along);
            dx[start + c] = from_float<X>(d);
            if (cast != nullptr) cast[start + c] = from_float<T>(d);
        }
    }
}

#define LAYER_NORM(T, X, suffix, Warps)                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK) layer_norm_##suffix##_##Warps(                               \
        T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, const X* __restrict__ x,              \
        const float* __restrict__ weight, const float* __restrict__ bias, uint32_t rows, uint32_t channels,          \
        float epsilon) {                                                                                             \
        forward<T, Warps>(y, mean, rstd, x, weight, bias, rows, channels, epsilon);                                  \
    }                                                                                                                \
    REGISTER(layer_norm_##suffix##_##Warps)                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK, 2) layer_norm_backward_##suffix##_##Warps(                   \
        X* dx, float* __restrict__ partials, const T* dy, const X* __restrict__ x,                                   \
        const float* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd,            \
        const X* so_far, T* cast, uint32_t rows, uint32_t channels, uint32_t rows_per_partial) {                     \
        backward<T, Warps>(dx, partials, dy, x, weight, mean, rstd, so_far, cast, rows, channels, rows_per_partial); \
    }                                                                                                                \
    REGISTER(layer_norm_backward_##suffix##_##Warps)

// At eight blocks per multiprocessor, the last kernel would spill registers on sm_100.
#define LAYER_NORM_OF(T, X, suffix)                                                                                  \
    LAYER_NORM(T, X, suffix, 1)                                                                                      \
    LAYER_NORM(T, X, suffix, 2)                                                                                      \
    LAYER_NORM(T, X, suffix, 4)                                                                                      \
    LAYER_NORM(T, X, suffix, 8)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK) layer_norm_##suffix##_any(                                   \
        T* __restrict__ y, float* __restrict__ mean, float* __restrict__ rstd, const X* __restrict__ x,              \
        const float* __restrict__ weight, const float* __restrict__ bias, uint32_t channels, float epsilon) {        \
        forward_any<T>(y, mean, rstd, x, weight, bias, channels, epsilon);                                           \
    }                                                                                                                \
    REGISTER(layer_norm_##suffix##_any)                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4) layer_norm_backward_##suffix##_any(                       \
        X* dx, float* __restrict__ partials, const T* dy, const X* __restrict__ x,                                   \
        const float* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd,            \
        const X* so_far, T* cast, uint32_t rows, uint32_t channels, uint32_t rows_per_partial) {                     \
        backward_any<T>(dx, partials, dy, x, weight, mean, rstd, so_far, cast, rows, channels, rows_per_partial);    \
    }                                                                                                                \
    REGISTER(layer_norm_backward_##suffix##_any)

LAYER_NORM_OF(float, float, f32)
LAYER_NORM_OF(bf16, float, bf16)
LAYER_NORM_OF(f16, float, f16)
LAYER_NORM_OF(bf16, bf16, bf16_bf16)
LAYER_NORM_OF(f16, f16, f16_f16)
