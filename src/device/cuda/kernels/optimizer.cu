// Norms, optimizer steps and loss scaling over whole buckets (flat parameter buffers) at the end of a step. Padding
// between the tensors of a bucket is neither read nor written.
#include "optimizers.cuh"
#include "reductions.cuh"
#include "vectors.cuh"
#include "weights.cuh"

// One tensor of a bucket. Each of its blocks processes NORM_ELEMENTS elements and stores one partial sum.
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

// partials[block] = sum of the squares of the block's elements.
template <class G>
__device__ __forceinline__ void sum_squares(double* partials, const Table<NormEntry>& table) {
    const NormEntry& entry = entry_of_block(table);
    const uint64_t begin = (blockIdx.x - entry.first_block) * NORM_ELEMENTS;
    const G* gradients = reinterpret_cast<const G*>(entry.gradients) + begin;
    const uint32_t count = static_cast<uint32_t>(min(NORM_ELEMENTS, entry.len - begin));
    const uint32_t whole = is_vector_aligned(gradients) ? count / 4 : 0;
    // Two independent chains of additions, to hide the latency of f64 additions.
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

// norm[0] = sqrt(sum of the partial sums), divided by scaling[0] unless `scaling` is null. One block.
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

// Stores the states of one tensor in T, rounded to nearest or stochastically. The random number depends on the seed,
// the step, the tensor's site and the element.
template <class T, bool RANDOM>
struct States {
    uint64_t seed;
    uint32_t site;
    uint32_t step;

    // Random words of four elements from `element` on, which is a multiple of four. The two halves of a word serve two
    // states of an element.
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

// Arguments common to all kernels: the bucket's buffers, the numbers of the step, and the norm and scale of the
// gradients.
struct Bucket {
    void* parameters;
    const void* gradients;
    const float* numbers;
    float* master;
    const float* norm;
    const float* scaling;
};

// Optimizer step for the elements of this block.
template <class Rule, class T, bool RANDOM>
__device__ __forceinline__ void update_bucket(const Bucket& bucket, T* (&moments)[MOMENTS_OF<Rule>], float clip_norm,
                                              const Rule& rule, const Formats& formats,
                                              const Table<UpdateEntry>& table) {
    constexpr int MOMENTS = Rule::MOMENTS;
    const UpdateEntry& entry = entry_of_block(table);
    const Weights weights(bucket.parameters, bucket.gradients, bucket.master, formats, entry.offset, entry.site,
                          bucket.numbers[1]);
    if (is_left_out(bucket.norm, bucket.scaling)) return weights.keep(entry.begin(), entry.count());
    const typename Rule::Step step = rule.step(entry.decay != 0, bucket.numbers);
    const float counted = TAKES_DIRECTIONS<Rule> ? 1.0f : share(clip_norm, bucket.norm, bucket.scaling);
    const States<T, RANDOM> states{formats.states_seed, weights.site, weights.step};
    const uint64_t begin = entry.begin();
    const uint32_t count = entry.count();
#pragma unroll
    for (int k = 0; k < MOMENTS; ++k) moments[k] += entry.offset + begin;
    const uint32_t whole = entry.offset % 4 == 0 ? count / 4 : 0;
#pragma unroll
    for (int q = 0; q < UPDATE_QUADS; ++q) {
        const uint32_t quad = q * BLOCK + threadIdx.x;
        if (quad < whole) {
            float4 p = weights.parameter_quad(begin + 4 * quad);
            const float4 g = weights.gradient_quad(begin + 4 * quad);
            float4 m[MOMENTS_OF<Rule>];
#pragma unroll
            for (int k = 0; k < MOMENTS; ++k) m[k] = load_quad(moments[k] + 4 * quad);
            const auto component = [&](float& parameter, float gradient, float float4::* of) {
                float numbers[MOMENTS_OF<Rule>];
#pragma unroll
                for (int k = 0; k < MOMENTS; ++k) numbers[k] = m[k].*of;
                rule.update(step, parameter, gradient * counted, numbers);
#pragma unroll
                for (int k = 0; k < MOMENTS; ++k) m[k].*of = numbers[k];
            };
            component(p.x, g.x, &float4::x);
            component(p.y, g.y, &float4::y);
            component(p.z, g.z, &float4::z);
            component(p.w, g.w, &float4::w);
            weights.store_quad_of(begin + 4 * quad, p);
            if constexpr (MOMENTS > 0) {
                const uint4 words = states.draw(begin + 4 * quad);
#pragma unroll
                for (int k = 0; k < MOMENTS; ++k) states.store(moments[k] + 4 * quad, m[k], words, 16 * k);
            }
        }
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        float p = weights.parameter(begin + i);
        float numbers[MOMENTS_OF<Rule>];
#pragma unroll
        for (int k = 0; k < MOMENTS; ++k) numbers[k] = to_float(moments[k][i]);
        rule.update(step, p, weights.gradient(begin + i) * counted, numbers);
        weights.store(begin + i, p);
#pragma unroll
        for (int k = 0; k < MOMENTS; ++k) states.store(moments[k][i], numbers[k], begin + i, 16 * k);
    }
}

// At five blocks per multiprocessor, the kernels below would spill registers on sm_120.

#define BEHIND_MOMENTS(Rule)                                                                                         \
    const float *__restrict__ numbers, float *master, const float *__restrict__ norm,                                \
        const float *__restrict__ scaling, float clip_norm, const Rule rule, const Formats formats,                  \
        const Table<UpdateEntry> table

#define NO_MOMENT(name, Rule)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name(void* parameters, const void* gradients, BEHIND_MOMENTS(Rule)) {                                        \
        float* none[1] = {nullptr};                                                                                  \
        update_bucket<Rule, float, false>({parameters, gradients, numbers, master, norm, scaling}, none, clip_norm,  \
                                          rule, formats, table);                                                     \
    }                                                                                                                \
    REGISTER(name)

#define ONE_MOMENT_IN(name, Rule, T, RANDOM)                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name(void* parameters, const void* gradients, T* __restrict__ moment, BEHIND_MOMENTS(Rule)) {                \
        T* moments[1] = {moment};                                                                                    \
        update_bucket<Rule, T, RANDOM>({parameters, gradients, numbers, master, norm, scaling}, moments, clip_norm,  \
                                       rule, formats, table);                                                        \
    }                                                                                                                \
    REGISTER(name)

#define TWO_MOMENTS_IN(name, Rule, T, RANDOM)                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name(void* parameters, const void* gradients, T* __restrict__ first, T* __restrict__ second,                 \
             BEHIND_MOMENTS(Rule)) {                                                                                 \
        T* moments[2] = {first, second};                                                                             \
        update_bucket<Rule, T, RANDOM>({parameters, gradients, numbers, master, norm, scaling}, moments, clip_norm,  \
                                       rule, formats, table);                                                        \
    }                                                                                                                \
    REGISTER(name)

#define ONE_MOMENT(name, Rule)                                                                                       \
    ONE_MOMENT_IN(name, Rule, float, false)                                                                          \
    ONE_MOMENT_IN(name##_bf16, Rule, bf16, false)                                                                    \
    ONE_MOMENT_IN(name##_bf16_random, Rule, bf16, true)

#define TWO_MOMENTS(name, Rule)                                                                                      \
    TWO_MOMENTS_IN(name, Rule, float, false)                                                                         \
    TWO_MOMENTS_IN(name##_bf16, Rule, bf16, false)                                                                   \
    TWO_MOMENTS_IN(name##_bf16_random, Rule, bf16, true)

OPTIMIZERS(NO_MOMENT, ONE_MOMENT, TWO_MOMENTS)

// Dynamic loss scaling, one thread. `counts` holds the number of good steps since the scale last changed, and the
// number of skipped steps.
extern "C" __global__ void loss_scale(float* scale, float* counts, const float* norm, float backoff, float growth,
                                      float interval) {
    if (!(norm[0] < INFINITY)) {
        scale[0] *= backoff;
        counts[0] = 0.0f;
        counts[1] += 1.0f;
    } else if (counts[0] + 1.0f < interval) {
        counts[0] += 1.0f;
    } else {
        // With an infinite scale, every later step would be skipped.
        const float grown = scale[0] * growth;
        if (grown < INFINITY) scale[0] = grown;
        counts[0] = 0.0f;
    }
}
REGISTER(loss_scale)
