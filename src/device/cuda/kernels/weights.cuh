// Parameters and gradients of a bucket during an optimizer step: accessed as f32, whatever their storage type.
#pragma once
#include "optimizer.cuh"
#include "philox.cuh"
#include "vectors.cuh"

// Stochastic rounding of f32 to bf16: rounds up with probability (discarded bits) / 65536. The lower 16 bits of `draw`
// are the random number.
__device__ __forceinline__ uint32_t bfloat_at_random(float value, uint32_t draw) {
    const uint32_t bits = __float_as_uint(value);
    const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
    return (is_number ? bits + (draw & 0xffffu) : bits | 0x00400000u) >> 16;
}

// Stochastic rounding of f32 to f16. Subnormals of f16 are multiples of 2^-24, which is 65536 times 2^-40.
__device__ __forceinline__ uint32_t half_at_random(float value, uint32_t draw) {
    constexpr uint32_t BIAS = (127 - 15) << 23;
    constexpr uint32_t LEAST_NORMAL = (127 - 14) << 23;
    constexpr uint32_t TOO_LARGE = (127 + 16) << 23;
    const uint32_t sign = __float_as_uint(value) & 0x80000000u;
    const uint32_t bits = __float_as_uint(value) ^ sign;
    draw &= 0xffffu;
    uint32_t rounded = (bits - BIAS + (draw >> 3)) >> 13;
    if (bits < LEAST_NORMAL) rounded = (static_cast<uint32_t>(__uint_as_float(bits) * 1099511627776.0f) + draw) >> 16;
    if (bits >= TOO_LARGE) rounded = 0x7c00u;
    if (bits > 0x7f800000u) rounded = 0x7c00u | (0x00400000u | (bits & 0x007fffffu)) >> 13;
    return rounded | sign >> 16;
}

// The random word of an element among the words of four elements. It is selected rather than indexed, so that the words
// stay in registers.
__device__ __forceinline__ uint32_t word_of(uint4 words, uint64_t element) {
    const uint32_t place = static_cast<uint32_t>(element) % 4;
    const uint32_t low = place == 0 ? words.x : words.y;
    const uint32_t high = place == 2 ? words.z : words.w;
    return place < 2 ? low : high;
}

// Storage types. All tensors of a bucket have one type, so branches on it do not diverge.
constexpr uint32_t IS_F32 = 0;
constexpr uint32_t IS_BF16 = 1;

// Storage of the parameters and states that a step updates.
struct Formats {
    // Seeds of the stochastic rounding of states and parameters.
    uint64_t states_seed;
    uint64_t parameters_seed;
    uint32_t parameters;
    uint32_t gradients;
    // Whether parameters are rounded stochastically.
    uint32_t random;
    uint32_t padding;
};

// Set in the step number of the random numbers of parameters; step numbers themselves never have this bit.
constexpr uint32_t OF_PARAMETERS = 1u << 31;

// Parameters and gradients of one tensor, which starts at element `offset`. `master` is null without master weights;
// otherwise parameters are read from `master` only.
struct Weights {
    void* parameters;
    const void* gradients;
    float* master;
    const Formats& formats;
    uint64_t offset;
    uint32_t site;
    uint32_t step;

    __device__ __forceinline__ Weights(void* parameters, const void* gradients, float* master, const Formats& formats,
                                       uint64_t offset, uint64_t site, float step)
        : parameters(parameters),
          gradients(gradients),
          master(master),
          formats(formats),
          offset(offset),
          site(static_cast<uint32_t>(site)),
          step(static_cast<uint32_t>(step)) {}

    template <class Use>
    __device__ __forceinline__ static void as(void* numbers, uint32_t type, Use use) {
        if (type == IS_F32) {
            use(static_cast<float*>(numbers));
        } else if (type == IS_BF16) {
            use(static_cast<bf16*>(numbers));
        } else {
            use(static_cast<f16*>(numbers));
        }
    }

    // Four elements from `element` on, which is a multiple of four, in a tensor whose offset is a multiple of four. For
    // the tail of the tensor, `count` limits them: the others read as 0 and are not written.
    __device__ __forceinline__ float4 parameter_quad(uint64_t element, int count = 4) const {
        if (master != nullptr) return load_quad(master + offset + element, count);
        float4 quad;
        as(parameters, formats.parameters,
           [&](auto* numbers) { quad = load_quad(numbers + offset + element, count); });
        return quad;
    }

    __device__ __forceinline__ float4 gradient_quad(uint64_t element, int count = 4) const {
        float4 quad;
        as(const_cast<void*>(gradients), formats.gradients,
           [&](auto* numbers) { quad = load_quad(numbers + offset + element, count); });
        return quad;
    }

    __device__ __forceinline__ void store_quad_of(uint64_t element, float4 values, int count = 4) const {
        if (master != nullptr) store_quad(master + offset + element, values, count);
        if (formats.random) {
            const uint4 words = draws(element);
            const uint2 pairs = make_uint2(at_random(values.x, words.x) | at_random(values.y, words.y) << 16,
                                           at_random(values.z, words.z) | at_random(values.w, words.w) << 16);
            store_bits(static_cast<uint16_t*>(parameters) + offset + element, pairs, count);
            return;
        }
        as(parameters, formats.parameters,
           [&](auto* numbers) { store_quad(numbers + offset + element, values, count); });
    }

    // One element.
    __device__ __forceinline__ float parameter(uint64_t element) const {
        if (master != nullptr) return master[offset + element];
        float value;
        as(parameters, formats.parameters, [&](auto* numbers) { value = to_float(numbers[offset + element]); });
        return value;
    }

    __device__ __forceinline__ float gradient(uint64_t element) const {
        float value;
        as(const_cast<void*>(gradients), formats.gradients,
           [&](auto* numbers) { value = to_float(numbers[offset + element]); });
        return value;
    }

    __device__ __forceinline__ void store(uint64_t element, float value) const {
        if (master != nullptr) master[offset + element] = value;
        if (formats.random) {
            const uint32_t word = word_of(draws(element / 4 * 4), element);
            static_cast<uint16_t*>(parameters)[offset + element] = static_cast<uint16_t>(at_random(value, word));
            return;
        }
        as(parameters, formats.parameters, [&](auto* numbers) { put(numbers[offset + element], value); });
    }

    // Keeps `count` elements from `first` on in a skipped step. With master weights, the parameters are rounded from
    // them again, because they may exist nowhere else.
    __device__ __forceinline__ void keep(uint64_t first, uint32_t count) const {
        if (master == nullptr) return;
        const uint64_t begin = offset + first;
        as(parameters, formats.parameters, [&](auto* numbers) {
            for (uint32_t i = threadIdx.x; i < count; i += BLOCK) put(numbers[begin + i], master[begin + i]);
        });
    }

   private:
    template <class T>
    __device__ __forceinline__ static void put(T& sink, float value) {
        sink = from_float<T>(value);
    }

    // Random words of four elements from `element` on, which is a multiple of four.
    __device__ __forceinline__ uint4 draws(uint64_t element) const {
        return philox(element / 4, site, step | OF_PARAMETERS, formats.parameters_seed);
    }

    __device__ __forceinline__ uint32_t at_random(float value, uint32_t draw) const {
        return formats.parameters == IS_BF16 ? bfloat_at_random(value, draw) : half_at_random(value, draw);
    }
};
