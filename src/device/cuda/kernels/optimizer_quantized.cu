// Optimizer steps with 8-bit states: blocks of codes share a scale, their largest magnitude (block-wise dynamic
// quantization, Dettmers et al. 2022). A warp processes one quantization block at a time, eight numbers per lane.
#include "dynamic_map.cuh"
#include "optimizers.cuh"
#include "reductions.cuh"
#include "vectors.cuh"
#include "weights.cuh"

constexpr uint32_t QUANTIZED = 256;
constexpr int WARPS = BLOCK / 32;
// Quantization blocks that a warp processes in sequence.
constexpr int TURNS = UPDATE_ELEMENTS / (QUANTIZED * WARPS);

__device__ __forceinline__ uint32_t load_codes(const uint8_t* source, int count) {
    if (count >= 4) return *reinterpret_cast<const uint32_t*>(source);
    uint32_t codes = 0;
    for (int i = 0; i < count; ++i) codes |= static_cast<uint32_t>(source[i]) << (8 * i);
    return codes;
}

__device__ __forceinline__ void store_codes(uint8_t* sink, uint32_t codes, int count) {
    if (count >= 4) {
        *reinterpret_cast<uint32_t*>(sink) = codes;
    } else {
        for (int i = 0; i < count; ++i) sink[i] = static_cast<uint8_t>(codes >> (8 * i));
    }
}

// One quantized state (moment) of the parameters.
struct Quantized {
    uint8_t* codes;
    float* scales;
};

// For each lane, dequantizes up to four numbers of each of N states, calls `work(place, count, values)`, where `place`
// is the tensor element of the first number, and quantizes and stores them again. `maps(state, use)` calls `use` with
// the state's map.
template <int N, class Maps, class Work>
__device__ __forceinline__ void each_block(const UpdateEntry& entry, const Quantized (&states)[N], Maps maps, Work work) {
    const uint64_t begin = (blockIdx.x - entry.first_block) * UPDATE_ELEMENTS;
    const uint32_t lane = threadIdx.x % 32;
    // Unrolling would double the code size of the kernels.
#pragma unroll 1
    for (int turn = 0; turn < TURNS; ++turn) {
        const uint64_t block = begin + QUANTIZED * (turn * WARPS + threadIdx.x / 32);
        // Uniform across the warp.
        if (block >= entry.len) return;
        const uint32_t len = static_cast<uint32_t>(min(static_cast<uint64_t>(QUANTIZED), entry.len - block));
        const uint64_t scale = (entry.offset + block) / QUANTIZED;
        float values[N][2][4];
        float largest[N];
#pragma unroll
        for (int state = 0; state < N; ++state) largest[state] = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t place = 128 * half + 4 * lane;
            const uint64_t offset = entry.offset + block + place;
            const int count = static_cast<int>(place < len ? min(len - place, 4u) : 0u);
            float numbers[N][4];
#pragma unroll
            for (int state = 0; state < N; ++state) {
                const uint32_t codes = load_codes(states[state].codes + offset, count);
                maps(state, [&](const auto& map) { map.decode(numbers[state], codes, states[state].scales[scale]); });
            }
            if (count > 0) work(block + place, count, numbers);
#pragma unroll
            for (int state = 0; state < N; ++state) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    values[state][half][i] = numbers[state][i];
                    if (i < count) largest[state] = fmaxf(largest[state], fabsf(numbers[state][i]));
                }
            }
        }
#pragma unroll
        for (int state = 0; state < N; ++state) {
            // Every lane has read the old scale before this reduction.
            const float found = warp_max(largest[state]);
            if (lane == 0) states[state].scales[scale] = found;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t place = 128 * half + 4 * lane;
                const int count = static_cast<int>(place < len ? min(len - place, 4u) : 0u);
                maps(state, [&](const auto& map) {
                    store_codes(states[state].codes + entry.offset + block + place,
                                map.encode(values[state][half], found), count);
                });
            }
        }
    }
}

// Calls `work` for each of up to four parameters, with its gradient and its index, to update it. It is called for all
// four: `count` limits only loads and stores, so that full and partial groups share one code path per type.
template <class Work>
__device__ __forceinline__ void each_weight(const Weights& weights, uint64_t place, int count, Work work) {
    float4 p = weights.parameter_quad(place, count);
    const float4 g = weights.gradient_quad(place, count);
    work(p.x, g.x, 0);
    work(p.y, g.y, 1);
    work(p.z, g.z, 2);
    work(p.w, g.w, 3);
    weights.store_quad_of(place, p, count);
}

// Optimizer step for the elements of this block.
template <class Rule>
__device__ __forceinline__ void update_quantized(const Weights& weights, const UpdateEntry& entry,
                                                 const Quantized (&moments)[Rule::MOMENTS], const float* numbers,
                                                 float counted, const Rule& rule) {
    __shared__ Shares<true> signed_shares;
    __shared__ Shares<false> unsigned_shares;
    signed_shares.make<BLOCK>();
    if constexpr (has_unsigned<Rule>()) unsigned_shares.make<BLOCK>();
    __syncthreads();
    const typename Rule::Step step = rule.step(entry.decay != 0, numbers);
    const auto maps = [&](int moment, auto use) {
        if (Rule::is_signed(moment)) {
            use(signed_shares);
        } else {
            use(unsigned_shares);
        }
    };
    each_block<Rule::MOMENTS>(entry, moments, maps, [&](uint64_t place, int count, float (&all)[Rule::MOMENTS][4]) {
        each_weight(weights, place, count, [&](float& parameter, float gradient, int i) {
            float one[Rule::MOMENTS];
#pragma unroll
            for (int k = 0; k < Rule::MOMENTS; ++k) one[k] = all[k][i];
            rule.update(step, parameter, gradient * counted, one);
#pragma unroll
            for (int k = 0; k < Rule::MOMENTS; ++k) all[k][i] = one[k];
        });
    });
}

#define BEHIND_MOMENTS(Rule)                                                                                         \
    const float *__restrict__ numbers, float *master, const float *__restrict__ norm,                                \
        const float *__restrict__ scaling, float clip_norm, const Rule rule, const Formats formats,                  \
        const Table<UpdateEntry> table

#define UPDATE(Rule, ...)                                                                                            \
    const UpdateEntry& entry = entry_of_block(table);                                                                \
    const Weights weights(parameters, gradients, master, formats, entry.offset, entry.site, numbers[1]);             \
    if (is_left_out(norm, scaling)) return weights.keep(entry.begin(), entry.count());                               \
    const Quantized moments[Rule::MOMENTS] = {__VA_ARGS__};                                                          \
    update_quantized<Rule>(weights, entry, moments, numbers, share(clip_norm, norm, scaling), rule);

#define NO_MOMENT(name, Rule)

#define ONE_MOMENT(name, Rule)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name##_quantized(void* parameters, const void* gradients, uint8_t* __restrict__ codes,                       \
                         float* __restrict__ scales, BEHIND_MOMENTS(Rule)) {                                         \
        UPDATE(Rule, {codes, scales})                                                                                \
    }                                                                                                                \
    REGISTER(name##_quantized)

#define TWO_MOMENTS(name, Rule)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK, 4)                                                           \
        name##_quantized(void* parameters, const void* gradients, uint8_t* __restrict__ first,                       \
                         float* __restrict__ first_scales, uint8_t* __restrict__ second,                             \
                         float* __restrict__ second_scales, BEHIND_MOMENTS(Rule)) {                                  \
        UPDATE(Rule, {first, first_scales}, {second, second_scales})                                                 \
    }                                                                                                                \
    REGISTER(name##_quantized)

OPTIMIZERS(NO_MOMENT, ONE_MOMENT, TWO_MOMENTS)
