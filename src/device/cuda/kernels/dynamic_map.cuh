// Dynamic 8-bit quantization: codes for numbers of all magnitudes up to a scale (Dettmers et al. 2022).
#pragma once
#include "compat.cuh"

constexpr int DECADES = 7;

// Values of the codes as fractions of the scale: 0, 1, and between them seven decades, each with twice as many values
// as the one below, at the midpoints of equal parts of its [0.1, 1]. Signed: 1, 2, .. 64 values in a decade, and code
// 127 is 0. Unsigned: twice as many, and code 0 is 0.
template <bool SIGNED>
struct Map {
    static constexpr int ZERO = SIGNED ? 127 : 0;

    __device__ static __forceinline__ int count(int decade) { return (SIGNED ? 1 : 2) << decade; }

    // Code of the smallest value of a decade, minus ZERO. The decade after the last contains only 1.
    __device__ static __forceinline__ int first(int decade) { return count(decade) - (SIGNED ? 0 : 1); }

    __device__ static __forceinline__ float unit(int decade) {
        constexpr float UNITS[DECADES + 1] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f, 10.0f};
        float unit = UNITS[0];
#pragma unroll
        for (int i = 1; i <= DECADES; ++i) unit = decade == i ? UNITS[i] : unit;
        return unit;
    }

    __device__ static __forceinline__ float share(int code) {
        const int above = code < ZERO ? ZERO - code : code - ZERO;
        if (above == 0) return 0.0f;
        int decade = 0;
#pragma unroll
        for (int i = 1; i <= DECADES; ++i) decade += above >= first(i);
        if (decade == DECADES) return 1.0f;
        const float place = (above - first(decade)) + 0.5f;
        const float share = (0.1f + 0.9f * place / count(decade)) * unit(decade);
        return code < ZERO ? -share : share;
    }

    // Lower bound of a decade: the midpoint between its smallest value and the value below.
    __device__ static __forceinline__ float least(int decade) {
        return 0.5f * (share(ZERO + first(decade) - 1) + share(ZERO + first(decade)));
    }

    // The decade is found first, so that the share is divided only once, by the unit of that decade. `count` is a power
    // of 2, so the product with it is exact.
    __device__ static __forceinline__ uint32_t code(float value, float scale, const float (&least)[DECADES + 1]) {
        const float share = fabsf(value) / scale;
        int decade = -1;
#pragma unroll
        for (int i = 0; i <= DECADES; ++i) decade += share >= least[i];
        int above = 0;
        if (decade == DECADES) {
            above = first(DECADES);
        } else if (decade >= 0) {
            const float place = count(decade) * (1.0f / 0.9f * (share / unit(decade)) - 1.0f / 9.0f);
            above = first(decade) + static_cast<int>(fminf(fmaxf(place, 0.0f), count(decade) - 1.0f));
        }
        // There is one code fewer below 0 than above.
        return SIGNED && value < 0.0f ? ZERO - min(above, ZERO) : ZERO + above;
    }
};

// Lookup tables of a map, filled by the threads of a block: the value of each code, and the lower bounds of the
// decades.
template <bool SIGNED>
struct Shares {
    float of_code[256];
    float least[DECADES + 1];

    template <int THREADS>
    __device__ __forceinline__ void make() {
        for (int code = threadIdx.x; code < 256; code += THREADS) of_code[code] = Map<SIGNED>::share(code);
        if (threadIdx.x <= DECADES) least[threadIdx.x] = Map<SIGNED>::least(threadIdx.x);
    }

    // Decodes four codes of one byte each.
    __device__ __forceinline__ void decode(float (&values)[4], uint32_t codes, float scale) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] = of_code[codes >> (8 * i) & 255u] * scale;
    }

    __device__ __forceinline__ uint32_t encode(const float (&values)[4], float scale) const {
        uint32_t codes = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) codes |= Map<SIGNED>::code(values[i], scale, least) << (8 * i);
        return codes;
    }
};
