// What happens to whole buckets of gradients and parameters at the end of a step. Padding between the tensors of a
// bucket is neither read nor written.
#include "optimizer.cuh"
#include "reductions.cuh"
#include "vectors.cuh"
#include "weights.cuh"

// One tensor of a bucket. Its blocks take NORM_ELEMENTS each, and each makes one partial sum.
struct NormEntry {
    uint64_t first_block;
    uint64_t gradients;
    uint64_t len;
};

constexpr uint64_t NORM_ELEMENTS = 65536;
constexpr int NORM_BLOCK = 512;

__device__ __forceinline__ double square(float value) {
    const double wide = value;
    return wide * wide;
}

// partials[block] = the sum of the squares of the block's elements.
template <class G>
__device__ __forceinline__ void sum_squares(double* partials, const Table<NormEntry>& table) {
    const NormEntry& entry = entry_of_block(table);
    const uint64_t begin = (blockIdx.x - entry.first_block) * NORM_ELEMENTS;
    const G* gradients = reinterpret_cast<const G*>(entry.gradients) + begin;
    const uint32_t count = static_cast<uint32_t>(min(NORM_ELEMENTS, entry.len - begin));
    const uint32_t whole = is_vector_aligned(gradients) ? count / 4 : 0;
    // Two chains of additions, because f64 units are slow to answer.
    double even = 0.0;
    double odd = 0.0;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < whole; i += NORM_BLOCK) {
        const float4 v = load_quad(gradients + 4 * i);
        even += square(v.x) + square(v.y);
        odd += square(v.z) + square(v.w);
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += NORM_BLOCK) even += square(to_float(gradients[i]));
    const double sum = block_sum(even + odd);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

#define NORM_PARTIALS(G, suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(NORM_BLOCK)                                                         \
        norm_partials_##suffix(double* __restrict__ partials, const Table<NormEntry> table) {                        \
        sum_squares<G>(partials, table);                                                                             \
    }                                                                                                                \
    REGISTER(norm_partials_##suffix)

NORM_PARTIALS(float, f32)
NORM_PARTIALS(bf16, bf16)
NORM_PARTIALS(f16, f16)

// norm[0] = sqrt(the sum of the partial sums), divided by scaling[0] unless `scaling` is null. One block.
extern "C" __global__ void __launch_bounds__(1024)
    norm_of_partials(float* norm, const double* __restrict__ partials, const float* __restrict__ scaling,
                     uint32_t count) {
    double sum = 0.0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        const double scale = scaling == nullptr ? 1.0 : static_cast<double>(scaling[0]);
        norm[0] = static_cast<float>(sqrt(sum) / scale);
    }
}
REGISTER(norm_of_partials)

// The states of one tensor in T: each rounded to the nearest or at random, where a draw depends on the seed, the step, the
// tensor's site and the element.
template <class T, bool RANDOM>
struct States {
    uint64_t seed;
    uint32_t site;
    uint32_t step;

    // Four words, the halves of each for two states of an element, for four elements from this one of the tensor on, a
    // multiple of four.
    __device__ __forceinline__ uint4 draw(uint64_t element) const {
        return RANDOM ? philox(element / 4, site, step, seed) : make_uint4(0, 0, 0, 0);
    }

    __device__ __forceinline__ void store(T* sink, float4 values, const uint4& words, uint32_t shift) const {
        if constexpr (RANDOM) {
            const auto pair = [&](float low, uint32_t word, float high, uint32_t next) {
                return bfloat_at_random(low, word >> shift) | bfloat_at_random(high, next >> shift) << 16;
            };
            *reinterpret_cast<uint2*>(sink) = make_uint2(pair(values.x, words.x, values.y, words.y),
                                                         pair(values.z, words.z, values.w, words.w));
        } else {
            store_quad(sink, values);
        }
    }

    // One element of the tensor.
    __device__ __forceinline__ void store(T& sink, float value, uint64_t element, uint32_t shift) const {
        if constexpr (RANDOM) {
            const uint32_t word = word_of(draw(element / 4 * 4), element);
            sink = T{static_cast<uint16_t>(bfloat_at_random(value, word >> shift))};
        } else {
            sink = from_float<T>(value);
        }
    }
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
template <class T, bool RANDOM>
__device__ __forceinline__ void update_adamw(void* parameters, const void* gradients, T* __restrict__ first,
                                             T* __restrict__ second, const float* __restrict__ numbers, float* master,
                                             const float* __restrict__ norm, const float* __restrict__ scaling,
                                             const AdamW& constants, const Formats& formats,
                                             const Table<UpdateEntry>& table) {
    const UpdateEntry& entry = entry_of_block(table);
    const Weights weights(parameters, gradients, master, formats, entry, numbers[3]);
    if (is_left_out(norm, scaling)) return weights.keep(entry);
    const AdamWStep step(constants, entry, numbers, norm, scaling);
    const States<T, RANDOM> states{formats.states_seed, weights.site, weights.step};
    const uint64_t begin = entry.begin();
    const uint32_t count = entry.count();
    first += entry.offset + begin;
    second += entry.offset + begin;
    const uint32_t whole = entry.offset % 4 == 0 ? count / 4 : 0;
#pragma unroll
    for (int q = 0; q < UPDATE_QUADS; ++q) {
        const uint32_t quad = q * BLOCK + threadIdx.x;
        if (quad < whole) {
            float4 p = weights.parameter_quad(begin + 4 * quad);
            const float4 g = weights.gradient_quad(begin + 4 * quad);
            float4 m = load_quad(first + 4 * quad);
            float4 v = load_quad(second + 4 * quad);
            update(constants, step, p, g, m, v);
            weights.store_quad_of(begin + 4 * quad, p);
            const uint4 words = states.draw(begin + 4 * quad);
            states.store(first + 4 * quad, m, words, 0);
            states.store(second + 4 * quad, v, words, 16);
        }
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        float p = weights.parameter(begin + i);
        float m = to_float(first[i]);
        float v = to_float(second[i]);
        update(constants, step, p, weights.gradient(begin + i), m, v);
        weights.store(begin + i, p);
        states.store(first[i], m, begin + i, 0);
        states.store(second[i], v, begin + i, 16);
    }
}

// In what follows, sm_120 would spill with the registers of five blocks to a multiprocessor.

#define ADAMW(name, T, RANDOM)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name(void* parameters, const void* gradients, T* __restrict__ first, T* __restrict__ second,                 \
             const float* __restrict__ numbers, float* master, const float* __restrict__ norm,                       \
             const float* __restrict__ scaling, const AdamW constants, const Formats formats,                        \
             const Table<UpdateEntry> table) {                                                                       \
        update_adamw<T, RANDOM>(parameters, gradients, first, second, numbers, master, norm, scaling, constants,     \
                                formats, table);                                                                     \
    }                                                                                                                \
    REGISTER(name)

ADAMW(adamw, float, false)
ADAMW(adamw_bf16, bf16, false)
ADAMW(adamw_bf16_random, bf16, true)

// Stochastic gradient descent without momentum.
extern "C" __global__ void __launch_bounds__(BLOCK, 4)
    sgd(void* parameters, const void* gradients, const float* __restrict__ numbers, float* master,
        const float* __restrict__ norm, const float* __restrict__ scaling, const Sgd constants, const Formats formats,
        const Table<UpdateEntry> table) {
    const UpdateEntry& entry = entry_of_block(table);
    const Weights weights(parameters, gradients, master, formats, entry, numbers[1]);
    if (is_left_out(norm, scaling)) return weights.keep(entry);
    const SgdStep step(constants, entry, numbers, norm, scaling);
    const uint64_t begin = entry.begin();
    const uint32_t count = entry.count();
    const uint32_t whole = entry.offset % 4 == 0 ? count / 4 : 0;
#pragma unroll
    for (int q = 0; q < UPDATE_QUADS; ++q) {
        const uint32_t quad = q * BLOCK + threadIdx.x;
        if (quad < whole) {
            float4 p = weights.parameter_quad(begin + 4 * quad);
            const float4 g = weights.gradient_quad(begin + 4 * quad);
            descend(step, p.x, g.x);
            descend(step, p.y, g.y);
            descend(step, p.z, g.z);
            descend(step, p.w, g.w);
            weights.store_quad_of(begin + 4 * quad, p);
        }
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        float p = weights.parameter(begin + i);
        descend(step, p, weights.gradient(begin + i));
        weights.store(begin + i, p);
    }
}
REGISTER(sgd)

template <class T, bool RANDOM>
__device__ __forceinline__ void update_momentum(void* parameters, const void* gradients, T* __restrict__ velocity,
                                                const float* __restrict__ numbers, float* master,
                                                const float* __restrict__ norm, const float* __restrict__ scaling,
                                                const Sgd& constants, const Formats& formats,
                                                const Table<UpdateEntry>& table) {
    const UpdateEntry& entry = entry_of_block(table);
    const Weights weights(parameters, gradients, master, formats, entry, numbers[1]);
    if (is_left_out(norm, scaling)) return weights.keep(entry);
    const SgdStep step(constants, entry, numbers, norm, scaling);
    const States<T, RANDOM> states{formats.states_seed, weights.site, weights.step};
    const uint64_t begin = entry.begin();
    const uint32_t count = entry.count();
    velocity += entry.offset + begin;
    const uint32_t whole = entry.offset % 4 == 0 ? count / 4 : 0;
#pragma unroll
    for (int q = 0; q < UPDATE_QUADS; ++q) {
        const uint32_t quad = q * BLOCK + threadIdx.x;
        if (quad < whole) {
            float4 p = weights.parameter_quad(begin + 4 * quad);
            const float4 g = weights.gradient_quad(begin + 4 * quad);
            float4 v = load_quad(velocity + 4 * quad);
            roll(constants, step, p, g, v);
            weights.store_quad_of(begin + 4 * quad, p);
            states.store(velocity + 4 * quad, v, states.draw(begin + 4 * quad), 0);
        }
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        float p = weights.parameter(begin + i);
        float v = to_float(velocity[i]);
        roll(constants, step, p, weights.gradient(begin + i), v);
        weights.store(begin + i, p);
        states.store(velocity[i], v, begin + i, 0);
    }
}

#define SGD_MOMENTUM(name, T, RANDOM)                                                                                \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name(void* parameters, const void* gradients, T* __restrict__ velocity, const float* __restrict__ numbers,   \
             float* master, const float* __restrict__ norm, const float* __restrict__ scaling, const Sgd constants,  \
             const Formats formats, const Table<UpdateEntry> table) {                                                \
        update_momentum<T, RANDOM>(parameters, gradients, velocity, numbers, master, norm, scaling, constants,       \
                                   formats, table);                                                                  \
    }                                                                                                                \
    REGISTER(name)

SGD_MOMENTUM(sgd_momentum, float, false)
SGD_MOMENTUM(sgd_momentum_bf16, bf16, false)
SGD_MOMENTUM(sgd_momentum_bf16_random, bf16, true)

// Dynamic loss scaling, one thread. `counts` holds the good steps since the scale last changed and the steps left out.
extern "C" __global__ void loss_scale(float* scale, float* counts, const float* norm, float backoff, float growth,
                                      float interval) {
    if (!(norm[0] < INFINITY)) {
        scale[0] *= backoff;
        counts[0] = 0.0f;
        counts[1] += 1.0f;
    } else if (counts[0] + 1.0f < interval) {
        counts[0] += 1.0f;
    } else {
        // A scale that is infinite would never let a step through again.
        const float grown = scale[0] * growth;
        if (grown < INFINITY) scale[0] = grown;
        counts[0] = 0.0f;
    }
}
REGISTER(loss_scale)
