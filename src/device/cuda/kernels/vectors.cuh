// Consecutive elements of any type, loaded into and stored from registers as floats.
#pragma once
#include "compat.cuh"

// The quiet NaN that marks an undefined result.
__device__ __forceinline__ float not_a_number() { return __uint_as_float(0x7fc00000u); }

// Vectorized load of 16 bytes of T. `source` is aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void load_floats(float (&values)[Vector<T>::size], const T* source) {
    const Vector<T> vector = load_vector(source);
#pragma unroll
    for (int i = 0; i < Vector<T>::size; ++i) values[i] = vector.get(i);
}

template <class T>
__device__ __forceinline__ void store_floats(T* sink, const float (&values)[Vector<T>::size]) {
    Vector<T> vector;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) vector.set(i, values[i]);
    } else {
        // One instruction converts a pair.
#pragma unroll
        for (int i = 0; i < 4; ++i) vector.words[i] = pack<T>(values[2 * i], values[2 * i + 1]);
    }
    store_vector(sink, vector);
}

// Loads four consecutive values of T: 16 bytes of f32, 8 bytes of a 16-bit type, aligned to their size.
template <class T>
__device__ __forceinline__ float4 load_quad(const T* source) {
    if constexpr (sizeof(T) == 4) {
        return *reinterpret_cast<const float4*>(source);
    } else {
        const uint2 bits = *reinterpret_cast<const uint2*>(source);
        auto value = [](uint32_t word, int shift) { return to_float(T{static_cast<uint16_t>(word >> shift)}); };
        return make_float4(value(bits.x, 0), value(bits.x, 16), value(bits.y, 0), value(bits.y, 16));
    }
}

template <class T>
__device__ __forceinline__ void store_quad(T* sink, float4 values) {
    if constexpr (sizeof(T) == 4) {
        *reinterpret_cast<float4*>(sink) = values;
    } else {
        *reinterpret_cast<uint2*>(sink) = make_uint2(pack<T>(values.x, values.y), pack<T>(values.z, values.w));
    }
}

// Loads the first `count` of four values; the others are 0.
template <class T>
__device__ __forceinline__ float4 load_quad(const T* source, int count) {
    if (count >= 4) return load_quad(source);
    float4 values = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (count > 0) values.x = to_float(source[0]);
    if (count > 1) values.y = to_float(source[1]);
    if (count > 2) values.z = to_float(source[2]);
    return values;
}

// Stores the first `count` of four 16-bit values.
__device__ __forceinline__ void store_bits(uint16_t* sink, uint2 bits, int count) {
    if (count >= 4) {
        *reinterpret_cast<uint2*>(sink) = bits;
    } else {
        if (count > 0) sink[0] = static_cast<uint16_t>(bits.x);
        if (count > 1) sink[1] = static_cast<uint16_t>(bits.x >> 16);
        if (count > 2) sink[2] = static_cast<uint16_t>(bits.y);
    }
}

template <class T>
__device__ __forceinline__ void store_quad(T* sink, float4 values, int count) {
    if (count >= 4) {
        store_quad(sink, values);
    } else {
        if (count > 0) sink[0] = from_float<T>(values.x);
        if (count > 1) sink[1] = from_float<T>(values.y);
        if (count > 2) sink[2] = from_float<T>(values.z);
    }
}

// Loads eight consecutive values, aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void load_eight(float (&values)[8], const T* source) {
    if constexpr (sizeof(T) == 4) {
        const float4 low = load_quad(source);
        const float4 high = load_quad(source + 4);
        values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
        values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    } else {
        load_floats(values, source);
    }
}

template <class T>
__device__ __forceinline__ void store_eight(T* sink, const float (&values)[8]) {
    if constexpr (sizeof(T) == 4) {
        store_quad(sink, make_float4(values[0], values[1], values[2], values[3]));
        store_quad(sink + 4, make_float4(values[4], values[5], values[6], values[7]));
    } else {
        store_floats(sink, values);
    }
}

// `Width` consecutive values, 1, 4 or 8. Several values of T start at a multiple of their size, of at most 16 bytes.
template <int Width, class T>
__device__ __forceinline__ void load_values(float (&values)[Width], const T* source) {
    if constexpr (Width == 8) {
        load_eight(values, source);
    } else if constexpr (Width == 4) {
        const float4 quad = load_quad(source);
        values[0] = quad.x, values[1] = quad.y, values[2] = quad.z, values[3] = quad.w;
    } else {
        values[0] = to_float(*source);
    }
}

template <int Width, class T>
__device__ __forceinline__ void store_values(T* sink, const float (&values)[Width]) {
    if constexpr (Width == 8) {
        store_eight(sink, values);
    } else if constexpr (Width == 4) {
        store_quad(sink, make_float4(values[0], values[1], values[2], values[3]));
    } else {
        *sink = from_float<T>(values[0]);
    }
}
