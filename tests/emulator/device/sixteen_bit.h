// f32 to and from 16-bit floating point, rounding to nearest even as the GPU's conversions do.
#pragma once

#include "language.h"

inline uint16_t bfloat_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0x7fff;  // every NaN becomes the canonical one, as `cvt` does
    }
    const uint32_t nearest_even = 0x7fff + (bits >> 16 & 1);
    return static_cast<uint16_t>((bits + nearest_even) >> 16);
}

inline uint16_t half_bits(float value) {
    const uint32_t bits = __float_as_uint(value);
    const uint16_t sign = bits >> 16 & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return 0x7fff;
    }
    if (magnitude >=
        0x477ff000) {  // 65520 and more: at or past the midpoint between the largest f16 and the next power
        return sign | 0x7c00;
    }
    if (magnitude >= 0x38800000) {  // 2^-14 and more: normal
        const uint32_t nearest_even = 0xfff + (magnitude >> 13 & 1);
        return sign | static_cast<uint16_t>((magnitude - (112u << 23) + nearest_even) >> 13);
    }
    if (magnitude < 0x33000000) {  // less than 2^-25, half of the smallest f16
        return sign;
    }
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    const uint32_t shift = 126 - (magnitude >> 23);  // the result is in units of 2^-24
    const uint32_t kept = mantissa >> shift;
    const uint32_t lost = mantissa & ((1u << shift) - 1);
    const uint32_t middle = 1u << (shift - 1);
    return sign | static_cast<uint16_t>(kept + (lost > middle || (lost == middle && (kept & 1))));
}

inline float half_value(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = bits >> 10 & 31;
    const uint32_t mantissa = bits & 0x3ff;
    if (exponent == 31) {
        return __uint_as_float(sign | 0x7f800000 | mantissa << 13);
    }
    if (exponent == 0) {
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint32_t half_pair_bits(float low, float high) {
    return half_bits(low) | static_cast<uint32_t>(half_bits(high)) << 16;
}

inline uint32_t bfloat_pair_bits(float low, float high) {
    return bfloat_bits(low) | static_cast<uint32_t>(bfloat_bits(high)) << 16;
}
