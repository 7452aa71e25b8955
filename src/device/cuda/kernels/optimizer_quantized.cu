// Updates of buckets whose states are codes of 8 bits in blocks that share a scale, their largest magnitude (block-wise
// dynamic quantization, Dettmers et al. 2022). A warp takes a block at a time: each lane eight numbers of it.
#include "optimizer.cuh"
#include "reductions.cuh"
#include "vectors.cuh"
#include "weights.cuh"

constexpr uint32_t QUANTIZED = 256;
constexpr int WARPS = BLOCK / 32;
// Blocks of numbers that a warp takes one after the other.
constexpr int TURNS = UPDATE_ELEMENTS / (QUANTIZED * WARPS);
constexpr int DECADES = 7;

// What codes stand for, as shares of the scale: 0, 1 and between them seven decades, each with twice as many numbers as the
// one below it, in the middles of equal parts of [0.1, 1] of it. Signed, there are 1, 2, .. 64 in a decade, and code 127 is
// 0; otherwise twice as many, and code 0 is 0.
template <bool SIGNED>
struct Map {
    static constexpr int ZERO = SIGNED ? 127 : 0;

    __device__ static __forceinline__ int count(int decade) { return (SIGNED ? 1 : 2) << decade; }

    // How far above that of 0 the code of a decade's least number is. Of the decade after the last, 1 is the only one.
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

    // The least share of a decade: half way from the code below.
    __device__ static __forceinline__ float least(int decade) {
        return 0.5f * (share(ZERO + first(decade) - 1) + share(ZERO + first(decade)));
    }

    __device__ static __forceinline__ uint32_t code(float value, float scale, const float (&least)[DECADES + 1]) {
        const float share = fabsf(value) / scale;
        int above = 0;
#pragma unroll
        for (int i = 0; i <= DECADES; ++i) {
            if (share >= least[i]) {
                const float place = i == DECADES ? 0.0f : count(i) / 0.9f * (share / unit(i)) - count(i) / 9.0f;
                above = first(i) + static_cast<int>(fminf(fmaxf(place, 0.0f), count(i) - 1.0f));
            }
        }
        // There is one code less below 0 than above.
        return SIGNED && value < 0.0f ? ZERO - min(above, ZERO) : ZERO + above;
    }
};

// A map's shares, made by the threads of a block, and what numbers are put into decades by.
template <bool SIGNED>
struct Shares {
    float of_code[256];
    float least[DECADES + 1];

    __device__ __forceinline__ void make() {
        for (int code = threadIdx.x; code < 256; code += BLOCK) of_code[code] = Map<SIGNED>::share(code);
        if (threadIdx.x <= DECADES) least[threadIdx.x] = Map<SIGNED>::least(threadIdx.x);
    }

    // What four codes, a byte each, stand for.
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

// One of a tensor's states.
struct Quantized {
    uint8_t* codes;
    float* scales;
};

// Brings up to four numbers of each of N states of every lane to f32, calls `work(place, count, values)` for them, where the
// first is that of the tensor's element `place`, and stores them again. `shares(state)` is its map.
template <int N, class Maps, class Work>
__device__ __forceinline__ void each_block(const UpdateEntry& entry, const Quantized (&states)[N], Maps maps, Work work) {
    const uint64_t begin = (blockIdx.x - entry.first_block) * UPDATE_ELEMENTS;
    const uint32_t lane = threadIdx.x % 32;
    for (int turn = 0; turn < TURNS; ++turn) {
        const uint64_t block = begin + QUANTIZED * (turn * WARPS + threadIdx.x / 32);
        // The same for all lanes of a warp.
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
            // Every lane has read the old scale by then.
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

// Lets `work` change up to four parameters, given each with its gradient and its place among them.
template <class Work>
__device__ __forceinline__ void each_weight(const Weights& weights, uint64_t place, int count, Work work) {
    if (count == 4) {
        float4 p = weights.parameter_quad(place);
        const float4 g = weights.gradient_quad(place);
        work(p.x, g.x, 0);
        work(p.y, g.y, 1);
        work(p.z, g.z, 2);
        work(p.w, g.w, 3);
        weights.store_quad_of(place, p);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < count) {
            float p = weights.parameter(place + i);
            work(p, weights.gradient(place + i), i);
            weights.store(place + i, p);
        }
    }
}

// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
extern "C" __global__ void __launch_bounds__(BLOCK)
    adamw_quantized(void* parameters, const void* gradients, uint8_t* __restrict__ first,
                    float* __restrict__ first_scales, uint8_t* __restrict__ second, float* __restrict__ second_scales,
                    const float* __restrict__ numbers, float* master, const float* __restrict__ norm,
                    const float* __restrict__ scaling, const AdamW constants, const Formats formats,
                    const Table<UpdateEntry> table) {
    if (is_left_out(norm, scaling)) return;
    __shared__ Shares<true> signed_shares;
    __shared__ Shares<false> unsigned_shares;
    signed_shares.make();
    unsigned_shares.make();
    __syncthreads();
    const UpdateEntry& entry = entry_of_block(table);
    const AdamWStep step(constants, entry, numbers, norm, scaling);
    const Weights weights{parameters,   gradients,
                          master,       formats,
                          entry.offset, static_cast<uint32_t>(entry.site),
                          static_cast<uint32_t>(numbers[3])};
    const Quantized states[2] = {{first, first_scales}, {second, second_scales}};
    const auto maps = [&](int state, auto use) {
        if (state == 0) {
            use(signed_shares);
        } else {
            use(unsigned_shares);
        }
    };
    each_block<2>(entry, states, maps, [&](uint64_t place, int count, float (&moments)[2][4]) {
        each_weight(weights, place, count, [&](float& parameter, float gradient, int i) {
            update(constants, step, parameter, gradient, moments[0][i], moments[1][i]);
        });
    });
}
REGISTER(adamw_quantized)

// Stochastic gradient descent with momentum.
extern "C" __global__ void __launch_bounds__(BLOCK)
    sgd_momentum_quantized(void* parameters, const void* gradients, uint8_t* __restrict__ velocity,
                           float* __restrict__ scales, const float* __restrict__ numbers, float* master,
                           const float* __restrict__ norm, const float* __restrict__ scaling, const Sgd constants,
                           const Formats formats, const Table<UpdateEntry> table) {
    if (is_left_out(norm, scaling)) return;
    __shared__ Shares<true> shares;
    shares.make();
    __syncthreads();
    const UpdateEntry& entry = entry_of_block(table);
    const SgdStep step(constants, entry, numbers, norm, scaling);
    const Weights weights{parameters,   gradients,
                          master,       formats,
                          entry.offset, static_cast<uint32_t>(entry.site),
                          static_cast<uint32_t>(numbers[1])};
    const Quantized states[1] = {{velocity, scales}};
    const auto maps = [&](int, auto use) { use(shares); };
    each_block<1>(entry, states, maps, [&](uint64_t place, int count, float (&velocities)[1][4]) {
        each_weight(weights, place, count, [&](float& parameter, float gradient, int i) {
            roll(constants, step, parameter, gradient, velocities[0][i]);
        });
    });
}
REGISTER(sgd_momentum_quantized)
