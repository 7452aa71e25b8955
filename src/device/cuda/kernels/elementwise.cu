// Operations on each element by itself.
#include "gelu.cuh"
#include "tables.cuh"
#include "vectors.cuh"

constexpr int BLOCK = 256;
// Vectors of 16 bytes that a thread loads of each operand before it stores any: enough in flight to keep memory busy.
constexpr int VECTORS = 4;

// out[i] = function(a[i], b[i]). `out` may be `a` or `b`. A block takes BLOCK * VECTORS vectors. Operands that are rows of a
// tensor may begin within a vector.
template <class T, class Function>
__device__ __forceinline__ void map2(T* out, const T* a, const T* b, uint64_t count, Function function) {
    constexpr int WIDTH = Vector<T>::size;
    const bool aligned = is_vector_aligned(out) && is_vector_aligned(a) && is_vector_aligned(b);
    const uint64_t whole = aligned ? count / WIDTH : 0;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * VECTORS + threadIdx.x;
    Vector<T> left[VECTORS];
    Vector<T> right[VECTORS];
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const uint64_t vector = first + v * BLOCK;
        if (vector < whole) {
            left[v] = load_vector(a + vector * WIDTH);
            right[v] = load_vector(b + vector * WIDTH);
        }
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v) {
        const uint64_t vector = first + v * BLOCK;
        if (vector < whole) {
            float values[WIDTH];
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) values[i] = function(left[v].get(i), right[v].get(i));
            store_floats(out + vector * WIDTH, values);
        }
    }
    const uint64_t single = whole * WIDTH + static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    for (uint64_t i = single; i < count; i += static_cast<uint64_t>(gridDim.x) * BLOCK) {
        out[i] = from_float<T>(function(to_float(a[i]), to_float(b[i])));
    }
}

#define ADD(T, suffix)                                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        add_##suffix(T* sum, const T* a, const T* b, uint64_t count) {                                               \
        map2(sum, a, b, count, [](float a, float b) { return a + b; });                                              \
    }                                                                                                                \
    REGISTER(add_##suffix)

ADD(float, f32)
ADD(bf16, bf16)
ADD(f16, f16)

// Elements that a thread takes one by one where a kernel is not worth more.
constexpr int SINGLES = 8;

// Calls `work` for elements of a block.
template <class Work>
__device__ __forceinline__ void each(uint64_t count, Work work) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * BLOCK * SINGLES + threadIdx.x;
#pragma unroll
    for (int i = 0; i < SINGLES; ++i) {
        if (first + i * BLOCK < count) work(first + i * BLOCK);
    }
}

// before[i] = a[i] + b[i]; y[i] = gelu of the sum. `before` may be `a`, and `y` may be `b`.
#define ADD_GELU(T, suffix)                                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        add_gelu_##suffix(T* y, T* before, const T* a, const T* b, uint64_t count) {                                 \
        each(count, [&](uint64_t i) {                                                                                \
            const float sum = to_float(a[i]) + to_float(b[i]);                                                       \
            before[i] = from_float<T>(sum);                                                                          \
            y[i] = from_float<T>(gelu(sum));                                                                         \
        });                                                                                                          \
    }                                                                                                                \
    REGISTER(add_gelu_##suffix)

ADD_GELU(float, f32)
ADD_GELU(bf16, bf16)
ADD_GELU(f16, f16)

// y[i] = factor * x[i]. `y` may be `x`.
#define SCALE(T, suffix)                                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        scale_##suffix(T* y, const T* x, float factor, uint64_t count) {                                             \
        each(count, [&](uint64_t i) { y[i] = from_float<T>(factor * to_float(x[i])); });                             \
    }                                                                                                                \
    REGISTER(scale_##suffix)

SCALE(float, f32)
SCALE(bf16, bf16)
SCALE(f16, f16)

// dx[i] = dy[i] * gelu'(x[i])
#define GELU_BACKWARD(T, suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        gelu_backward_##suffix(T* dx, const T* dy, const T* x, uint64_t count) {                                     \
        map2(dx, dy, x, count, [](float dy, float x) { return dy * gelu_slope(x); });                                \
    }                                                                                                                \
    REGISTER(gelu_backward_##suffix)

GELU_BACKWARD(float, f32)
GELU_BACKWARD(bf16, bf16)
GELU_BACKWARD(f16, f16)

// What follows a product that cuBLASLt cannot finish itself. A block takes 4 * BLOCK columns of one row.

// y[r, c] += bias[c]
template <class T>
__device__ __forceinline__ void add_bias(T* y, const T* bias, uint32_t columns) {
    y += static_cast<uint64_t>(blockIdx.x) * columns;
    const uint32_t end = min(columns, (blockIdx.y + 1) * 4 * BLOCK);
    for (uint32_t c = blockIdx.y * 4 * BLOCK + threadIdx.x; c < end; c += BLOCK) {
        y[c] = from_float<T>(to_float(y[c]) + to_float(bias[c]));
    }
}

#define ADD_BIAS(T, suffix)                                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        add_bias_##suffix(T* __restrict__ y, const T* __restrict__ bias, uint32_t columns) {                         \
        add_bias(y, bias, columns);                                                                                  \
    }                                                                                                                \
    REGISTER(add_bias_##suffix)

ADD_BIAS(float, f32)
ADD_BIAS(bf16, bf16)
ADD_BIAS(f16, f16)

// before[r, c] += bias[c]; y[r, c] = gelu(before[r, c]) + residual[r, c]. `bias` and `residual` may be null, and
// `residual` may be `y`.
template <class T, class Y>
__device__ __forceinline__ void finish_gelu(Y* y, T* before, const Y* bias, const Y* residual, uint32_t columns) {
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * columns;
    const uint32_t end = min(columns, (blockIdx.y + 1) * 4 * BLOCK);
    for (uint32_t c = blockIdx.y * 4 * BLOCK + threadIdx.x; c < end; c += BLOCK) {
        const float x = to_float(before[start + c]) + (bias == nullptr ? 0.0f : to_float(bias[c]));
        before[start + c] = from_float<T>(x);
        y[start + c] = from_float<Y>(gelu(x) + (residual == nullptr ? 0.0f : to_float(residual[start + c])));
    }
}

#define FINISH_GELU(name, T, Y)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name(Y* y, T* before, const Y* bias, const Y* residual, uint32_t columns) {                                  \
        finish_gelu(y, before, bias, residual, columns);                                                             \
    }                                                                                                                \
    REGISTER(name)

FINISH_GELU(finish_gelu_f32, float, float)
FINISH_GELU(finish_gelu_bf16, bf16, bf16)
FINISH_GELU(finish_gelu_f16, f16, f16)
FINISH_GELU(finish_gelu_bf16_residual, bf16, float)
FINISH_GELU(finish_gelu_f16_residual, f16, float)

// One tensor that is cast. Its blocks take CAST_ELEMENTS each.
struct CastEntry {
    uint64_t first_block;
    uint64_t source;
    uint64_t sink;
    uint64_t count;
};

// A thread's share of a block, in runs of 8: 16 bytes of a 16-bit type.
constexpr int CAST_RUNS = 4;
constexpr uint64_t CAST_ELEMENTS = 8 * CAST_RUNS * BLOCK;

template <class From>
__device__ __forceinline__ void load_eight(float (&values)[8], const From* source) {
    if constexpr (sizeof(From) == 4) {
        const float4 low = load_quad(source);
        const float4 high = load_quad(source + 4);
        values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
        values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    } else {
        load_floats(values, source);
    }
}

template <class To>
__device__ __forceinline__ void store_eight(To* sink, const float (&values)[8]) {
    if constexpr (sizeof(To) == 4) {
        store_quad(sink, make_float4(values[0], values[1], values[2], values[3]));
        store_quad(sink + 4, make_float4(values[4], values[5], values[6], values[7]));
    } else {
        store_floats(sink, values);
    }
}

template <class From, class To>
__device__ __forceinline__ void cast(const Table<CastEntry>& table) {
    const CastEntry& entry = entry_of_block(table);
    const uint64_t begin = (blockIdx.x - entry.first_block) * CAST_ELEMENTS;
    const From* source = reinterpret_cast<const From*>(entry.source) + begin;
    To* sink = reinterpret_cast<To*>(entry.sink) + begin;
    const uint32_t count = static_cast<uint32_t>(min(CAST_ELEMENTS, entry.count - begin));
    // Tensors that lie in a bucket of a 16-bit type may begin anywhere.
    const uint32_t whole = is_vector_aligned(source) && is_vector_aligned(sink) ? count / 8 : 0;
    float values[CAST_RUNS][8];
#pragma unroll
    for (int r = 0; r < CAST_RUNS; ++r) {
        const uint32_t run = r * BLOCK + threadIdx.x;
        if (run < whole) load_eight(values[r], source + 8 * run);
    }
#pragma unroll
    for (int r = 0; r < CAST_RUNS; ++r) {
        const uint32_t run = r * BLOCK + threadIdx.x;
        if (run < whole) store_eight(sink + 8 * run, values[r]);
    }
    for (uint32_t i = 8 * whole + threadIdx.x; i < count; i += BLOCK) sink[i] = from_float<To>(to_float(source[i]));
}

#define CAST(From, from, To, to)                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK) cast_##from##_##to(const Table<CastEntry> table) {           \
        cast<From, To>(table);                                                                                       \
    }                                                                                                                \
    REGISTER(cast_##from##_##to)

CAST(float, f32, float, f32)
CAST(float, f32, bf16, bf16)
CAST(float, f32, f16, f16)
CAST(bf16, bf16, float, f32)
CAST(bf16, bf16, bf16, bf16)
CAST(bf16, bf16, f16, f16)
CAST(f16, f16, float, f32)
CAST(f16, f16, bf16, bf16)
CAST(f16, f16, f16, f16)
