// CUDA's mathematical functions that C++ does not have, or has under other names. Approximate ones (`__expf`) are
// computed accurately: the emulator does not model their error on a GPU.
#pragma once

#include <type_traits>

#include "language.h"

using std::isfinite;
using std::isinf;
using std::isnan;

// Newer C libraries declare these in a way that conflicts with an inline definition.
#define rsqrtf emulated_rsqrtf
#define rsqrt emulated_rsqrt
#define sinpi emulated_sinpi
#define cospi emulated_cospi

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __frsqrt_rn(float x) { return static_cast<float>(1 / sqrt(static_cast<double>(x))); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }

// Kernels are compiled without contraction of floating-point expressions, so these are single IEEE operations.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(nearbyintf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }

// sin and cos of pi x. The argument is reduced exactly to [-1/4, 1/4] before the multiplication by pi.
inline void sincospi(double x, double* sine, double* cosine) {
    const double quarters = nearbyint(2 * x);
    const double angle = M_PI * (x - quarters / 2);
    const double s = sin(angle), c = cos(angle);
    switch (static_cast<int>(quarters - 4 * floor(quarters / 4))) {
        case 0: *sine = s, *cosine = c; break;
        case 1: *sine = c, *cosine = -s; break;
        case 2: *sine = -s, *cosine = -c; break;
        default: *sine = -c, *cosine = s;
    }
}

inline void sincospif(float x, float* sine, float* cosine) {
    double s, c;
    sincospi(x, &s, &c);
    *sine = static_cast<float>(s);
    *cosine = static_cast<float>(c);
}

inline double sinpi(double x) {
    double s, c;
    sincospi(x, &s, &c);
    return s;
}

inline double cospi(double x) {
    double s, c;
    sincospi(x, &s, &c);
    return c;
}

inline unsigned __umulhi(unsigned x, unsigned y) {
    return static_cast<unsigned>(static_cast<uint64_t>(x) * y >> 32);
}
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<int64_t>(x) * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

// CUDA's min and max accept mixed types, and return the number if one argument is a NaN.
template <class X, class Y>
constexpr std::common_type_t<X, Y> min(X x, Y y) {
    using T = std::common_type_t<X, Y>;
    if constexpr (std::is_floating_point_v<T>) {
        return std::fmin(static_cast<T>(x), static_cast<T>(y));
    } else {
        return static_cast<T>(y) < static_cast<T>(x) ? static_cast<T>(y) : static_cast<T>(x);
    }
}

template <class X, class Y>
constexpr std::common_type_t<X, Y> max(X x, Y y) {
    using T = std::common_type_t<X, Y>;
    if constexpr (std::is_floating_point_v<T>) {
        return std::fmax(static_cast<T>(x), static_cast<T>(y));
    } else {
        return static_cast<T>(x) < static_cast<T>(y) ? static_cast<T>(y) : static_cast<T>(x);
    }
}

template <class T>
inline T __ldg(const T* source) {
    return *source;
}
template <class T>
inline T __ldcs(const T* source) {
    return *source;
}
template <class T>
inline T __ldcg(const T* source) {
    return *source;
}
template <class T>
inline void __stcs(T* destination, T value) {
    *destination = value;
}
template <class T>
inline void __stcg(T* destination, T value) {
    *destination = value;
}
