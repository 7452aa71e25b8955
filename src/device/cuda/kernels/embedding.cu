// Token plus learned position embedding.
//
// Widths are in elements: a lane takes four channels at a time where rows begin at multiples of 16 bytes, and one
// where they do not.
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int WARPS = 8;

// Channels of one lane.
template <int Width>
struct Channels {
    float values[Width];

    __device__ __forceinline__ void load(const float* source) {
        if constexpr (Width == 4) {
            load_floats(values, source);
        } else {
            values[0] = *source;
        }
    }

    __device__ __forceinline__ void store(float* sink) const {
        if constexpr (Width == 4) {
            store_floats(sink, values);
        } else {
            *sink = values[0];
        }
    }

    __device__ __forceinline__ void fill(float value) {
#pragma unroll
        for (int i = 0; i < Width; ++i) values[i] = value;
    }

    __device__ __forceinline__ void add(const Channels& other) {
#pragma unroll
        for (int i = 0; i < Width; ++i) values[i] += other.values[i];
    }
};

template <int Width>
__device__ __forceinline__ void embed(float* x, const float* token, const float* position, uint32_t channels) {
#pragma unroll 4
    for (uint32_t c = threadIdx.x % 32 * Width; c < channels; c += 32 * Width) {
        Channels<Width> sum, other;
        sum.load(token + c);
        other.load(position + c);
        sum.add(other);
        sum.store(x + c);
    }
}

// x[n, :] = table[tokens[n], :] + positions[n % sequence, :]. One warp per row. A token that the table does not have is
// no number: what lies outside of the table is not read.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    embedding(float* __restrict__ x, const int* __restrict__ tokens, const float* __restrict__ table,
              const float* __restrict__ positions, uint32_t rows, uint32_t sequence, uint32_t channels,
              uint32_t vocabulary) {
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    x += static_cast<uint64_t>(row) * channels;
    const uint32_t number = tokens[row];
    if (number >= vocabulary) {
        for (uint32_t c = threadIdx.x % 32; c < channels; c += 32) x[c] = not_a_number();
        return;
    }
    const float* token = table + static_cast<uint64_t>(number) * channels;
    const float* position = positions + static_cast<uint64_t>(row % sequence) * channels;
    if (channels % 4 == 0) {
        embed<4>(x, token, position, channels);
    } else {
        embed<1>(x, token, position, channels);
    }
}
REGISTER(embedding)

template <int Width>
__device__ __forceinline__ void sum_over_batch(float* dpositions, const float* dx, uint32_t batch, uint64_t stride,
                                               uint32_t accumulate) {
    Channels<Width> sum;
    if (accumulate) {
        sum.load(dpositions);
    } else {
        sum.fill(0.0f);
    }
#pragma unroll 8
    for (uint32_t b = 0; b < batch; ++b) {
        Channels<Width> row;
        row.load(dx + b * stride);
        sum.add(row);
    }
    sum.store(dpositions);
}

// dpositions[i] (+)= the sum of dx[b, i] over the batch, i over `stride` = sequence * channels elements.
extern "C" __global__ void embedding_positions_backward(float* __restrict__ dpositions, const float* __restrict__ dx,
                                                        uint32_t batch, uint64_t stride, uint32_t accumulate) {
    const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (stride % 4 == 0) {
        const uint64_t i = thread * 4;
        if (i < stride) sum_over_batch<4>(dpositions + i, dx + i, batch, stride, accumulate);
    } else {
        // As many threads as for vectors, so each takes four elements one by one.
        for (uint64_t i = thread; i < stride; i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
            sum_over_batch<1>(dpositions + i, dx + i, batch, stride, accumulate);
        }
    }
}
REGISTER(embedding_positions_backward)

// The gradient of the table without atomics: a block owns some rows of it, looks through all tokens for them, and adds
// what it finds in an order that the tokens alone decide.

// A warp looks through this many tokens before the block adds what was found. A find is kept in 16 bits: where it
// is among those tokens, and which of the block's rows it is.
constexpr uint32_t TOKENS_PER_WARP = 2048;
constexpr uint32_t ROW_BITS = 5;
static_assert(TOKENS_PER_WARP << ROW_BITS == 1 << 16, "a find takes 16 bits");
// Tokens of a row whose gradients are loaded at once.
constexpr uint32_t BATCH = 8;

struct Finds {
    uint16_t list[WARPS][TOKENS_PER_WARP];
    uint32_t count[WARPS];
    // Tokens of the row that a warp works on, not yet added.
    uint32_t pending[WARPS][BATCH + 32];
};

// Lists which of `count` tokens from `tokens` on are rows of the block, by one warp.
__device__ __forceinline__ uint32_t find(uint16_t* list, const int* tokens, uint32_t count, uint32_t first_row,
                                         uint32_t block_rows) {
    // Tokens of a lane that are loaded at once.
    constexpr uint32_t LOADS = 16;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t earlier = (1u << lane) - 1;
    uint32_t found = 0;
    for (uint32_t start = lane; start < count + lane; start += 32 * LOADS) {
        uint32_t rows[LOADS];
#pragma unroll
        for (uint32_t i = 0; i < LOADS; ++i) {
            const uint32_t place = start + 32 * i;
            // Rows before the block's become large numbers.
            rows[i] = place < count ? static_cast<uint32_t>(tokens[place]) - first_row : block_rows;
        }
#pragma unroll
        for (uint32_t i = 0; i < LOADS; ++i) {
            const bool here = rows[i] < block_rows;
            const uint32_t all = __ballot_sync(FULL_WARP, here);
            // Most tokens are other blocks'.
            if (all == 0) continue;
            const uint32_t place = start + 32 * i;
            if (here) list[found + __popc(all & earlier)] = static_cast<uint16_t>(place << ROW_BITS | rows[i]);
            found += __popc(all);
        }
    }
    return found;
}

// row[c] += (dx[pending[0], c] + dx[pending[1], c] + ...), of at most BATCH tokens, by one warp. The tokens are summed
// before they are added to the row, which is more exact where there are hundreds of them.
template <int Width>
__device__ __forceinline__ void add_tokens(float* row, const float* dx, const uint32_t* pending, uint32_t count,
                                           uint32_t channels, uint32_t begin, uint32_t end, bool from_zero) {
#pragma unroll 1
    for (uint32_t c = begin + threadIdx.x % 32 * Width; c < end; c += 32 * Width) {
        Channels<Width> gradients[BATCH];
        Channels<Width> so_far;
        so_far.fill(0.0f);
        if (!from_zero) so_far.load(row + c);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; ++i) {
            if (i < count) gradients[i].load(dx + static_cast<uint64_t>(pending[i]) * channels + c);
        }
        Channels<Width> sum;
        sum.fill(0.0f);
#pragma unroll
        for (uint32_t i = 0; i < BATCH; ++i) {
            if (i < count) sum.add(gradients[i]);
        }
        sum.add(so_far);
        sum.store(row + c);
    }
}

template <int Width>
__device__ __forceinline__ void add_to_table(float* dtable, const int* tokens, const float* dx, uint32_t token_count,
                                             uint32_t vocabulary, uint32_t channels, uint32_t block_rows,
                                             uint32_t block_channels, uint32_t accumulate, Finds& finds) {
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t earlier = (1u << lane) - 1;
    const uint32_t first_row = blockIdx.x * block_rows;
    const uint32_t rows = min(block_rows, vocabulary - first_row);
    const uint32_t begin = blockIdx.y * block_channels;
    const uint32_t end = min(channels, begin + block_channels);
    uint32_t* pending = finds.pending[warp];

    for (uint32_t start = 0; start < token_count; start += WARPS * TOKENS_PER_WARP) {
        const uint32_t mine = start + warp * TOKENS_PER_WARP;
        const uint32_t count = mine < token_count ? min(TOKENS_PER_WARP, token_count - mine) : 0;
        const uint32_t found = find(finds.list[warp], tokens + mine, count, first_row, rows);
        if (lane == 0) finds.count[warp] = found;
        __syncthreads();

        for (uint32_t row = warp; row < rows; row += WARPS) {
            float* sums = dtable + static_cast<uint64_t>(first_row + row) * channels;
            // A row that is not added to is overwritten, even where it has no token.
            bool from_zero = start == 0 && !accumulate;
            uint32_t waiting = 0;
#pragma unroll 1
            for (uint32_t list = 0; list < WARPS; ++list) {
                const uint32_t base = start + list * TOKENS_PER_WARP;
                for (uint32_t i = 0; i < finds.count[list]; i += 32) {
                    const uint32_t entry = i + lane < finds.count[list] ? finds.list[list][i + lane] : 0;
                    const bool here = i + lane < finds.count[list] && entry % (1 << ROW_BITS) == row;
                    const uint32_t all = __ballot_sync(FULL_WARP, here);
                    if (here) pending[waiting + __popc(all & earlier)] = base + (entry >> ROW_BITS);
                    waiting += __popc(all);
                    __syncwarp();
                    while (waiting >= BATCH) {
                        add_tokens<Width>(sums, dx, pending, BATCH, channels, begin, end, from_zero);
                        from_zero = false;
                        waiting -= BATCH;
                        // What is left, at most 31, moves to the front.
                        const uint32_t left = lane < waiting ? pending[BATCH + lane] : 0;
                        __syncwarp();
                        if (lane < waiting) pending[lane] = left;
                        __syncwarp();
                    }
                }
            }
            if (waiting > 0 || from_zero) {
                add_tokens<Width>(sums, dx, pending, waiting, channels, begin, end, from_zero);
            }
            // The next row's tokens take the place of this one's.
            __syncwarp();
        }
        __syncthreads();
    }
}

// dtable[v, :] (+)= the sum of dx[n, :] over all n with tokens[n] = v. A block takes `block_rows` rows (at most 32) and
// `block_channels` channels (a multiple of 128) of them. With registers for three blocks to a multiprocessor, sm_80 would
// spill.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
    embedding_table_backward(float* __restrict__ dtable, const int* __restrict__ tokens, const float* __restrict__ dx,
                             uint32_t token_count, uint32_t vocabulary, uint32_t channels, uint32_t block_rows,
                             uint32_t block_channels, uint32_t accumulate) {
    __shared__ Finds finds;
    if (channels % 4 == 0) {
        add_to_table<4>(dtable, tokens, dx, token_count, vocabulary, channels, block_rows, block_channels, accumulate,
                        finds);
    } else {
        add_to_table<1>(dtable, tokens, dx, token_count, vocabulary, channels, block_rows, block_channels, accumulate,
                        finds);
    }
}
REGISTER(embedding_table_backward)
