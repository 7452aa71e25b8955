// Elementwise operations.
#include "elementwise.cuh"
#include "tables.cuh"

#define ADD(T, suffix)                                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        add_##suffix(T* sum, const T* a, const T* b, uint64_t count) {                                               \
        map2(sum, a, b, count, [](float a, float b) { return a + b; });                                              \
    }                                                                                                                \
    REGISTER(add_##suffix)

ADD(float, f32)
ADD(bf16, bf16)
ADD(f16, f16)

// y[i] = factor * x[i]. `y` may be `x`.
template <class T>
__device__ __forceinline__ void scale(T* y, const T* x, float factor, uint64_t count) {
    each_run<T>(count, [&](auto run, uint64_t i) {
        float values[run.size];
        load_values(values, x + i);
#pragma unroll
        for (float& value : values) value *= factor;
        store_values(y + i, values);
    });
}

#define SCALE(T, suffix)                                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        scale_##suffix(T* y, const T* x, float factor, uint64_t count) {                                             \
        scale(y, x, factor, count);                                                                                  \
    }                                                                                                                \
    REGISTER(scale_##suffix)

SCALE(float, f32)
SCALE(bf16, bf16)
SCALE(f16, f16)

// y[r, c] += bias[c]: epilogue of a matmul for which cuBLASLt has no fused one.
template <class T>
__device__ __forceinline__ void add_bias(T* y, const T* bias, uint32_t rows, uint32_t columns) {
    constexpr int WIDTH = Vector<T>::size;
    const bool aligned = is_vector_aligned(y) && is_vector_aligned(bias);
    each_run_of_rows<WIDTH>(rows, columns, aligned, [&](auto run, uint32_t row, uint32_t c) {
        const uint64_t at = static_cast<uint64_t>(row) * columns + c;
        float values[run.size], biases[run.size];
        load_values(values, y + at);
        load_values(biases, bias + c);
#pragma unroll
        for (int i = 0; i < run.size; ++i) values[i] += biases[i];
        store_values(y + at, values);
    });
}

#define ADD_BIAS(T, suffix)                                                                                          \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        add_bias_##suffix(T* __restrict__ y, const T* __restrict__ bias, uint32_t rows, uint32_t columns) {          \
        add_bias(y, bias, rows, columns);                                                                            \
    }                                                                                                                \
    REGISTER(add_bias_##suffix)

ADD_BIAS(float, f32)
ADD_BIAS(bf16, bf16)
ADD_BIAS(f16, f16)

// One tensor to cast. Each of its blocks processes CAST_ELEMENTS elements.
struct CastEntry {
    uint64_t first_block;
    uint64_t source;
    uint64_t sink;
    uint64_t count;
};

// Runs of 8 elements per thread: 16 bytes of a 16-bit type.
constexpr int CAST_RUNS = 4;
constexpr uint64_t CAST_ELEMENTS = 8 * CAST_RUNS * BLOCK;

template <class From, class To>
__device__ __forceinline__ void cast(const Table<CastEntry>& table) {
    const CastEntry& entry = entry_of_block(table);
    const uint64_t begin = (blockIdx.x - entry.first_block) * CAST_ELEMENTS;
    const From* source = reinterpret_cast<const From*>(entry.source) + begin;
    To* sink = reinterpret_cast<To*>(entry.sink) + begin;
    const uint32_t count = static_cast<uint32_t>(min(CAST_ELEMENTS, entry.count - begin));
    // Tensors in a bucket of a 16-bit type may be unaligned.
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
