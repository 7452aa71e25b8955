// Sorts token positions by token: a least-significant-digit radix sort, which is stable. A single block does all of it:
// only 4 bytes move per token, against its thousands of channels elsewhere.
#include "reductions.cuh"

constexpr uint32_t WARPS = 32;
constexpr uint32_t DIGIT_BITS = 8;
constexpr uint32_t DIGITS = 1 << DIGIT_BITS;
// Positions that a lane loads at a time.
constexpr uint32_t LOADS = 8;

struct Counts {
    // Per warp: number of its tokens with a digit; later the offset of its next one within the digit's output range.
    uint32_t of_warp[WARPS][DIGITS];
    // Per digit: total count; later the start of the digit's output range, the count of all smaller digits.
    uint32_t of_digit[DIGITS];
};

// Arguments of one pass. Tokens outside of the vocabulary are treated as `vocabulary`, and sort last.
struct Pass {
    uint32_t* to;
    // Null in the first pass, whose input is the identity order.
    const uint32_t* from;
    const int* tokens;
    uint32_t vocabulary;
    uint32_t shift;
};

// The lanes among `lanes` with the same digit.
__device__ __forceinline__ uint32_t same_digit(uint32_t lanes, uint32_t digit) {
#pragma unroll
    for (uint32_t bit = 0; bit < DIGIT_BITS; ++bit) {
        const bool set = digit >> bit & 1;
        const uint32_t all = __ballot_sync(FULL_WARP, set);
        lanes &= set ? all : ~all;
    }
    return lanes;
}

// Loops over the warp's run of positions in order: counts the digits or, with `Move`, stores each position in the
// output range of its digit.
template <bool Move>
__device__ __forceinline__ void walk(const Pass& pass, uint32_t begin, uint32_t end, Counts& counts) {
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t start = begin; start < end; start += 32 * LOADS) {
        uint32_t places[LOADS];
        uint32_t digits[LOADS];
#pragma unroll
        for (uint32_t i = 0; i < LOADS; ++i) {
            const uint32_t at = start + 32 * i + lane;
            places[i] = at < end && pass.from != nullptr ? pass.from[at] : at;
        }
#pragma unroll
        for (uint32_t i = 0; i < LOADS; ++i) {
            const bool here = start + 32 * i + lane < end;
            const uint32_t token = here ? min(static_cast<uint32_t>(pass.tokens[places[i]]), pass.vocabulary) : 0;
            digits[i] = token >> pass.shift & (DIGITS - 1);
        }
#pragma unroll
        for (uint32_t i = 0; i < LOADS; ++i) {
            const bool here = start + 32 * i + lane < end;
            const uint32_t same = same_digit(__ballot_sync(FULL_WARP, here), digits[i]);
            const uint32_t earlier = __popc(same & ((1u << lane) - 1));
            const uint32_t next = counts.of_warp[warp][digits[i]];
            __syncwarp();
            if (here && earlier == 0) counts.of_warp[warp][digits[i]] = next + __popc(same);
            __syncwarp();
            if (Move && here) pass.to[counts.of_digit[digits[i]] + next + earlier] = places[i];
        }
    }
}

// Turns counts into offsets (exclusive prefix sums).
__device__ __forceinline__ void add_up(Counts& counts) {
    if (threadIdx.x < DIGITS) {
        uint32_t sum = 0;
        for (uint32_t warp = 0; warp < WARPS; ++warp) {
            const uint32_t count = counts.of_warp[warp][threadIdx.x];
            counts.of_warp[warp][threadIdx.x] = sum;
            sum += count;
        }
        counts.of_digit[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        constexpr uint32_t OWN = DIGITS / 32;
        uint32_t own = 0;
        for (uint32_t i = 0; i < OWN; ++i) own += counts.of_digit[threadIdx.x * OWN + i];
        uint32_t sum = own;
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const uint32_t other = __shfl_up_sync(FULL_WARP, sum, distance);
            if (threadIdx.x >= distance) sum += other;
        }
        sum -= own;
        for (uint32_t i = 0; i < OWN; ++i) {
            const uint32_t count = counts.of_digit[threadIdx.x * OWN + i];
            counts.of_digit[threadIdx.x * OWN + i] = sum;
            sum += count;
        }
    }
    __syncthreads();
}

// order = positions of `count` tokens, sorted by token. `other` is scratch memory of the same size. One block; one pass
// per digit of `vocabulary`.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    order_tokens(uint32_t* order, uint32_t* other, const int* __restrict__ tokens, uint32_t count,
                 uint32_t vocabulary, uint32_t passes) {
    __shared__ Counts counts;
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t each = (count + 32 * WARPS - 1) / (32 * WARPS) * 32;
    const uint32_t begin = min(count, warp * each);
    const uint32_t end = min(count, begin + each);
    for (uint32_t number = 0; number < passes; ++number) {
        // The buffers alternate so that the last pass writes to `order`.
        const bool there = (passes - number) % 2 == 1;
        const uint32_t* from = number == 0 ? nullptr : (there ? other : order);
        const Pass pass{there ? order : other, from, tokens, vocabulary, number * DIGIT_BITS};
        for (uint32_t digit = threadIdx.x % 32; digit < DIGITS; digit += 32) counts.of_warp[warp][digit] = 0;
        __syncwarp();
        walk<false>(pass, begin, end, counts);
        __syncthreads();
        add_up(counts);
        walk<true>(pass, begin, end, counts);
        // The next pass reads what other warps have stored.
        __syncthreads();
    }
}
REGISTER(order_tokens)
