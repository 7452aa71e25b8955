// Built-ins of CUDA C++ that need no header: qualifiers and types.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// An OS thread runs one block at a time, so its thread-local storage is the block's shared memory.
#define __shared__ static thread_local

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Vectors are aligned to their size, so that UndefinedBehaviorSanitizer reports accesses that are misaligned on a GPU.
#define EMULATED_VECTORS(T, name)                                                 \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                            \
    struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) name##4 { T x, y, z, w; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                    \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(long long, longlong)
EMULATED_VECTORS(unsigned long long, ulonglong)
#undef EMULATED_VECTORS

template <class To, class From>
inline To emulated_bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline uint32_t __float_as_uint(float value) { return emulated_bit_cast<uint32_t>(value); }
inline int __float_as_int(float value) { return emulated_bit_cast<int>(value); }
inline float __uint_as_float(uint32_t bits) { return emulated_bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return emulated_bit_cast<float>(bits); }
inline long long __double_as_longlong(double value) { return emulated_bit_cast<long long>(value); }
inline double __longlong_as_double(long long bits) { return emulated_bit_cast<double>(bits); }
