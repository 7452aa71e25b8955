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
#define SCALE(T, suffix)                                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        scale_##suffix(T* y, const T* x, float factor, uint64_t count) {                                             \
        each(count, [&](uint64_t i) { y[i] = from_float<T>(factor * to_float(x[i])); });                             \
    }                                                                                                                \
    REGISTER(scale_##suffix)

SCALE(float, f32)
SCALE(bf16, bf16)
SCALE(f16, f16)

// Epilogue of a matmul for which cuBLASLt has no fused one. A block processes 4 * BLOCK columns of one row.

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
