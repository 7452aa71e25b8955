// The platform layer of the kernels, for NVRTC and for the emulator of tests/emulator: the only file where the two
// differ, and the only one with inline PTX.
#pragma once

#ifdef EMU
#include "emulator.h"

inline float fast_exp2(float value) { return exp2f(value); }

#else

// NVRTC has no headers.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Dynamic shared memory as an array of T, aligned for 16-byte accesses.
#define DYN_SHARED(T, name)                                       \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    T* name = reinterpret_cast<T*>(name##_bytes)

// Registers a kernel in the emulator's kernel table; a GPU finds kernels by their names in the module.
#define REGISTER(kernel)

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// d[16, 8] += a[16, 16] b[16, 8] by one warp, in the fragment layouts of `mma.sync.m16n8k16`: a row-major in
// 4 registers of two values, b column-major in 2, d in 4 floats.
__device__ __forceinline__ void mma_bf16_16816(float* d, const uint32_t* a, const uint32_t* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_f16_16816(float* d, const uint32_t* a, const uint32_t* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d[16, 8] += a[16, 8] b[8, 8] on the bits of f32 values; the tensor core reads only the upper 19 bits of each.
__device__ __forceinline__ void mma_tf32_1688(float* d, const uint32_t* a, const uint32_t* b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads 8x8 matrices of 16-bit values from shared memory. Lane i passes the address of row `i % 8` of matrix `i / 8`
// (addresses of lanes past the last matrix are ignored) and receives, from row `i / 4` of each matrix, values `2 * (i %
// 4)` and `2 * (i % 4) + 1`.
__device__ __forceinline__ void ldmatrix_x4(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x1(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same with every matrix transposed: lane i receives rows `2 * (i % 4)` and `2 * (i % 4) + 1` of column `i / 4`.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(shared_address(row))
                 : "memory");
}

// Starts an asynchronous copy (cp.async) of 16 bytes from global to shared memory, both aligned to 16 bytes. The data
// is visible to the thread after `cp_wait`, and to the block after `cp_wait` and a barrier.
__device__ __forceinline__ void cp_async16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
                 : "memory");
}

// Commits the copies started since the last commit as one group.
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `n` (a literal) of the committed groups are still in flight.
#define cp_wait(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

// 2^value on the special function unit: error at most 2 ULP; subnormal results are flushed to zero.
__device__ __forceinline__ float fast_exp2(float value) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
    return power;
}

// f32 to and from the bits of 16-bit values, rounding to nearest even.
__device__ __forceinline__ uint16_t half_bits(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float half_value(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ uint16_t bfloat_bits(float value) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// Two values in one register, `low` in its lower half.
__device__ __forceinline__ uint32_t half_pair_bits(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

__device__ __forceinline__ uint32_t bfloat_pair_bits(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

#endif

__device__ __forceinline__ float bfloat_value(uint16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Storage types: all arithmetic is in f32.
struct bf16 {
    uint16_t x;
};

struct f16 {
    uint16_t x;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bf16 value) { return bfloat_value(value.x); }
__device__ __forceinline__ float to_float(f16 value) { return half_value(value.x); }

// Rounds to nearest even; values beyond the range of f16 become infinite.
template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
    return bf16{bfloat_bits(value)};
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float value) {
    return f16{half_bits(value)};
}

// Packs two 16-bit values into one register, `low` in its lower half: the layout of `mma` fragments.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ uint32_t pack<bf16>(float low, float high) {
    return bfloat_pair_bits(low, high);
}
template <>
__device__ __forceinline__ uint32_t pack<f16>(float low, float high) {
    return half_pair_bits(low, high);
}

// d += a b on tensor cores for fragments of T.
template <class T>
__device__ __forceinline__ void mma_16816(float* d, const uint32_t* a, const uint32_t* b);
template <>
__device__ __forceinline__ void mma_16816<bf16>(float* d, const uint32_t* a, const uint32_t* b) {
    mma_bf16_16816(d, a, b);
}
template <>
__device__ __forceinline__ void mma_16816<f16>(float* d, const uint32_t* a, const uint32_t* b) {
    mma_f16_16816(d, a, b);
}

// 16 bytes of T (8 values of 16 bits, or 4 of f32) in registers. Index it only with compile-time constants, so that it
// stays in registers.
template <class T>
struct Vector {
    static constexpr int size = 16 / sizeof(T);
    uint32_t words[4];

    __device__ __forceinline__ float get(int i) const {
        if constexpr (sizeof(T) == 4) {
            return __uint_as_float(words[i]);
        } else {
            return to_float(T{static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)))});
        }
    }

    __device__ __forceinline__ void set(int i, float value) {
        if constexpr (sizeof(T) == 4) {
            words[i] = __float_as_uint(value);
        } else {
            const uint32_t bits = from_float<T>(value).x;
            const int shift = 16 * (i % 2);
            words[i / 2] = (words[i / 2] & ~(0xffffu << shift)) | (bits << shift);
        }
    }
};

// Vectorized load and store; `source` and `destination` are aligned to 16 bytes.
template <class T>
__device__ __forceinline__ Vector<T> load_vector(const T* source) {
    const uint4 bits = *reinterpret_cast<const uint4*>(source);
    return Vector<T>{{bits.x, bits.y, bits.z, bits.w}};
}

template <class T>
__device__ __forceinline__ void store_vector(T* destination, const Vector<T>& vector) {
    *reinterpret_cast<uint4*>(destination) =
        make_uint4(vector.words[0], vector.words[1], vector.words[2], vector.words[3]);
}

// Whether `pointer` is aligned to 16 bytes, as vectorized loads and stores require.
__device__ __forceinline__ bool is_vector_aligned(const void* pointer) {
    return (reinterpret_cast<uint64_t>(pointer) & 15) == 0;
}
