// Token embedding, with an optional scale and optional learned positions.
//
// `Width` is in elements: a lane processes four channels at a time if rows start at multiples of four elements,
// otherwise one.
#include "reductions.cuh"
#include "vectors.cuh"

constexpr int WARPS = 8;

// Channels held by one lane.
template <int Width>
struct Channels {
    float values[Width];

    template <class T>
    __device__ __forceinline__ void load(const T* source) {
        load_values(values, source);
    }

    template <class T>
    __device__ __forceinline__ void store(T* sink) const {
        store_values(sink, values);
    }

    __device__ __forceinline__ void fill(float value) {
#pragma unroll
        for (int i = 0; i < Width; ++i) values[i] = value;
    }

    __device__ __forceinline__ void add(const Channels& other) {
#pragma unroll
        for (int i = 0; i < Width; ++i) values[i] += other.values[i];
    }

    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int i = 0; i < Width; ++i) values[i] *= factor;
    }
};

template <int Width, class P, class X>
__device__ __forceinline__ void embed(X* x, const P* token, const P* position, uint32_t channels, float scale) {
#pragma unroll 4
    for (uint32_t c = threadIdx.x % 32 * Width; c < channels; c += 32 * Width) {
        Channels<Width> sum;
        sum.load(token + c);
        sum.scale(scale);
        if (position != nullptr) {
            Channels<Width> other;
            other.load(position + c);
            sum.add(other);
        }
        sum.store(x + c);
    }
}

// x[n, :] = scale * table[tokens[n], :] + positions[n % sequence - starts[n], :]; `positions` and `starts` may be null.
// One warp per row. A token outside of the table gives a row of NaN, without an out-of-bounds read.
template <class P, class X>
__device__ __forceinline__ void embed_row(X* x, const int* tokens, const P* table, const P* positions, uint32_t rows,
                                          uint32_t sequence, uint32_t channels, uint32_t vocabulary, float scale,
                                          const int* starts) {
    const uint32_t row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;
    x += static_cast<uint64_t>(row) * channels;
    const uint32_t number = tokens[row];
    if (number >= vocabulary) {
        for (uint32_t c = threadIdx.x % 32; c < channels; c += 32) x[c] = from_float<X>(not_a_number());
        return;
    }
    const P* token = table + static_cast<uint64_t>(number) * channels;
    const uint32_t start = starts == nullptr ? 0 : starts[row];
    const P* position =
        positions == nullptr ? nullptr : positions + static_cast<uint64_t>(row % sequence - start) * channels;
    if (channels % 4 == 0) {
        embed<4>(x, token, position, channels, scale);
    } else {
        embed<1>(x, token, position, channels, scale);
    }
}

#define EMBEDDING(P, X, suffix)                                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) embedding_##suffix(                                     \
        X* __restrict__ x, const int* __restrict__ tokens, const P* __restrict__ table,                              \
        const P* __restrict__ positions, uint32_t rows, uint32_t sequence, uint32_t channels, uint32_t vocabulary,   \
        float scale, const int* __restrict__ starts) {                                                               \
        embed_row(x, tokens, table, positions, rows, sequence, channels, vocabulary, scale, starts);                 \
    }                                                                                                                \
    REGISTER(embedding_##suffix)

EMBEDDING(float, float, f32_f32)
EMBEDDING(float, bf16, f32_bf16)
EMBEDDING(float, f16, f32_f16)
EMBEDDING(bf16, float, bf16_f32)
EMBEDDING(bf16, bf16, bf16_bf16)
EMBEDDING(bf16, f16, bf16_f16)
EMBEDDING(f16, float, f16_f32)
EMBEDDING(f16, bf16, f16_bf16)
EMBEDDING(f16, f16, f16_f16)

template <int Width, class X, class G>
__device__ __forceinline__ void sum_over_batch(G* dpositions, const X* dx, uint32_t batch, uint64_t stride,
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

// dpositions[i] (+)= sum of dx[b, i] over the batch, for the `stride` = sequence * channels elements i.
template <class X, class G>
__device__ __forceinline__ void sum_positions(G* dpositions, const X* dx, uint32_t batch, uint64_t stride,
                                              uint32_t accumulate) {
    const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (stride % 4 == 0) {
        const uint64_t i = thread * 4;
        if (i < stride) sum_over_batch<4>(dpositions + i, dx + i, batch, stride, accumulate);
    } else {
        // The grid has one thread per four elements, so each thread processes four elements one by one (grid-stride
        // loop).
        for (uint64_t i = thread; i < stride; i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
            sum_over_batch<1>(dpositions + i, dx + i, batch, stride, accumulate);
        }
    }
}

// dpositions[p, :] (+)= sum of dx[n, :] over the rows n at position p of their document. A warp processes 32 channels
// of a position; its lanes search for such rows together.
template <class X, class G>
__device__ __forceinline__ void sum_positions_of_documents(G* dpositions, const X* dx, const int* starts, uint32_t rows,
                                                           uint32_t sequence, uint32_t channels, uint32_t accumulate) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t position = blockIdx.x, c = (blockIdx.y * WARPS + threadIdx.x / 32) * 32 + lane;
    G* sink = dpositions + static_cast<uint64_t>(position) * channels + c;
    float sum = accumulate && c < channels ? to_float(*sink) : 0.0f;
    for (uint32_t first = 0; first < rows; first += 32) {
        const uint32_t row = first + lane;
        const bool counts = row < rows && row % sequence - starts[row] == position;
        uint32_t found = __ballot_sync(FULL_WARP, counts);
        while (found != 0) {
            const uint32_t next = first + __ffs(static_cast<int>(found)) - 1;
            found &= found - 1;
            if (c < channels) sum += to_float(dx[static_cast<uint64_t>(next) * channels + c]);
        }
    }
    if (c < channels) *sink = from_float<G>(sum);
}

// Gradient of the table without atomics: `order_tokens` has sorted the token positions by table row, and each warp
// processes a chunk of CHUNK consecutive ones, across row boundaries. It sums the run of each table row. Only the chunk
// in which a run begins writes to the table row; every later chunk of the run stores one partial sum, and
// `embedding_table_finish` adds these in order. So all warps have equal work however often a token repeats, and the
// order of the sums depends on the tokens only (deterministic).
//
// GPT-2 124M, 16 sequences of 1024: 512 chunks times six channel blocks are 3072 warps. Source text as bytes, every
// fifth of which is a space: no warp adds more than 32 rows and then 113 partial sums. 16384 tokens drawn uniformly: 32
// rows, and almost no partial sums. Memory reads: dx once (50 MB), order and tokens for each channel block (0.8 MB)
// and, for text, partial sums (1.6 MB).

// Token positions per warp, one held by each lane.
constexpr uint32_t CHUNK = 32;
// Channels per block: 32 lanes times four.
constexpr uint32_t CHANNELS = 128;
// Rows loaded before they are added (loads in flight).
constexpr uint32_t BATCH = 8;

// Table row of the token at index `place` of the order; `vocabulary` for a token outside of the table, which is sorted
// last.
__device__ __forceinline__ uint32_t row_at(const uint32_t* order, const int* tokens, uint32_t vocabulary,
                                           uint32_t place) {
    return min(static_cast<uint32_t>(tokens[order[place]]), vocabulary);
}

// row = scale * sum, or row + scale * sum. Partial sums are stored unscaled.
template <int Width, class G>
__device__ __forceinline__ void add_to_row(G* row, Channels<Width> sum, float scale, bool accumulate) {
    Channels<Width> total;
    total.fill(0.0f);
    if (accumulate) total.load(row);
    sum.scale(scale);
    total.add(sum);
    total.store(row);
}

template <int Width, class X, class G>
__device__ __forceinline__ void sum_runs(G* dtable, float* partials, const uint32_t* order, const int* tokens,
                                         const X* dx, uint32_t token_count, uint32_t vocabulary,
                                         uint32_t channels, float scale, uint32_t accumulate) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t chunk = blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t first = chunk * CHUNK;
    if (first >= token_count) return;
    const uint32_t count = min(CHUNK, token_count - first);
    const uint32_t place = lane < count ? order[first + lane] : 0;
    const uint32_t own = lane < count ? min(static_cast<uint32_t>(tokens[place]), vocabulary) : vocabulary;
    const uint32_t before = first > 0 ? row_at(order, tokens, vocabulary, first - 1) : vocabulary;

    const uint32_t begin = blockIdx.y * CHANNELS;
    const uint32_t end = min(channels, begin + CHANNELS);
#pragma unroll 1
    for (uint32_t start = begin; start < end; start += 32 * Width) {
        const uint32_t c = start + lane * Width;
        const bool here = c < end;
        Channels<Width> sum;
        sum.fill(0.0f);
        // Whether the current run began in an earlier chunk.
        bool from_before = before == __shfl_sync(FULL_WARP, own, 0);
#pragma unroll 1
        for (uint32_t i = 0; i < count; i += BATCH) {
            Channels<Width> gradients[BATCH];
#pragma unroll
            for (uint32_t j = 0; j < BATCH; ++j) {
                const uint64_t at = __shfl_sync(FULL_WARP, place, i + j);
                if (here && i + j < count) gradients[j].load(dx + at * channels + c);
            }
#pragma unroll
            for (uint32_t j = 0; j < BATCH; ++j) {
                if (i + j >= count) break;
                const uint32_t row = __shfl_sync(FULL_WARP, own, i + j);
                sum.add(gradients[j]);
                const bool last = i + j + 1 == count || __shfl_sync(FULL_WARP, own, (i + j + 1) % 32) != row;
                if (!last) continue;
                // A 16-bit row is stored by `embedding_table_finish`, together with the partial sums of later chunks.
                const bool goes_on = sizeof(G) == 2 && i + j + 1 == count && first + count < token_count &&
                                     row_at(order, tokens, vocabulary, first + count) == row;
                if (here && row < vocabulary && (from_before || !goes_on)) {
                    if (from_before) {
                        sum.store(partials + static_cast<uint64_t>(chunk) * channels + c);
                    } else {
                        add_to_row<Width>(dtable + static_cast<uint64_t>(row) * channels + c, sum, scale, accumulate);
                    }
                }
                from_before = false;
                sum.fill(0.0f);
            }
        }
    }
}

// dtable[v, :] (+)= sum of dx[n, :] over the positions n of token v, up to the end of the chunk that contains the first
// of them; partials[chunk, :] = sum over the positions of the chunk whose run began in an earlier chunk. Rows without
// tokens are unchanged. Grid: (blocks of WARPS chunks, blocks of CHANNELS channels). At four blocks per multiprocessor,
// registers would spill.
#define EMBEDDING_BACKWARD(X, G, suffix)                                                                             \
    extern "C" __global__ void embedding_positions_backward_##suffix(                                                \
        G* __restrict__ dpositions, const X* __restrict__ dx, uint32_t batch, uint64_t stride,                       \
        uint32_t accumulate) {                                                                                       \
        sum_positions(dpositions, dx, batch, stride, accumulate);                                                    \
    }                                                                                                                \
    REGISTER(embedding_positions_backward_##suffix)                                                                  \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) embedding_positions_of_documents_backward_##suffix(     \
        G* __restrict__ dpositions, const X* __restrict__ dx, const int* __restrict__ starts, uint32_t rows,         \
        uint32_t sequence, uint32_t channels, uint32_t accumulate) {                                                 \
        sum_positions_of_documents(dpositions, dx, starts, rows, sequence, channels, accumulate);                    \
    }                                                                                                                \
    REGISTER(embedding_positions_of_documents_backward_##suffix)                                                     \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 3) embedding_table_backward_##suffix(                   \
        G* __restrict__ dtable, float* __restrict__ partials, const uint32_t* __restrict__ order,                    \
        const int* __restrict__ tokens, const X* __restrict__ dx, uint32_t token_count, uint32_t vocabulary,         \
        uint32_t channels, float scale, uint32_t accumulate) {                                                       \
        if (channels % 4 == 0) {                                                                                     \
            sum_runs<4>(dtable, partials, order, tokens, dx, token_count, vocabulary, channels, scale, accumulate);  \
        } else {                                                                                                     \
            sum_runs<1>(dtable, partials, order, tokens, dx, token_count, vocabulary, channels, scale, accumulate);  \
        }                                                                                                            \
    }                                                                                                                \
    REGISTER(embedding_table_backward_##suffix)

EMBEDDING_BACKWARD(float, float, f32_f32)
EMBEDDING_BACKWARD(float, bf16, f32_bf16)
EMBEDDING_BACKWARD(bf16, float, bf16_f32)
EMBEDDING_BACKWARD(bf16, bf16, bf16_bf16)
EMBEDDING_BACKWARD(float, f16, f32_f16)
EMBEDDING_BACKWARD(f16, float, f16_f32)
EMBEDDING_BACKWARD(f16, f16, f16_f16)

// The part of a run in the chunk in which it begins.
template <class X>
struct Beginning {
    const X* dx;
    const uint32_t* order;
    uint32_t first;
    uint32_t end;
};

template <int Width, class X, class G>
__device__ __forceinline__ void add_partials(G* row, const Beginning<X>& beginning, const float* partials,
                                             uint32_t count, uint32_t channels, uint32_t begin, uint32_t end,
                                             float scale, uint32_t accumulate) {
#pragma unroll 1
    for (uint32_t c = begin + threadIdx.x % 32 * Width; c < end; c += 32 * Width) {
        Channels<Width> sum;
        sum.fill(0.0f);
        if constexpr (sizeof(G) == 2) {
#pragma unroll 1
            for (uint32_t place = beginning.first; place < beginning.end; ++place) {
                Channels<Width> gradient;
                gradient.load(beginning.dx + static_cast<uint64_t>(beginning.order[place]) * channels + c);
                sum.add(gradient);
            }
        }
#pragma unroll 8
        for (uint32_t i = 0; i < count; ++i) {
            Channels<Width> partial;
            partial.load(partials + static_cast<uint64_t>(i) * channels + c);
            sum.add(partial);
        }
        add_to_row<Width>(row + c, sum, scale, sizeof(G) == 4 || accumulate);
    }
}

// Adds the partial sums of later chunks to the table row of a run. The warp of the chunk in which the run begins adds
// them to the sum that it stored there, or, for a 16-bit row, recomputes that sum, so that the total is rounded once.
// The grid is that of `embedding_table_backward`. At eight blocks per multiprocessor, sm_90 would spill registers.
template <class X, class G>
__device__ __forceinline__ void finish_runs(G* dtable, const float* partials, const uint32_t* order, const int* tokens,
                                            const X* dx, uint32_t token_count, uint32_t vocabulary, uint32_t channels,
                                            float scale, uint32_t accumulate) {
    const uint32_t chunk = blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t first = chunk * CHUNK;
    const uint32_t next = first + CHUNK;
    if (next >= token_count) return;
    const uint32_t row = row_at(order, tokens, vocabulary, next - 1);
    if (row == vocabulary || row_at(order, tokens, vocabulary, next) != row) return;
    const bool from_before = first > 0 && row_at(order, tokens, vocabulary, first - 1) == row;
    if (from_before) return;
    Beginning<X> beginning{dx, order, next, next};
    if constexpr (sizeof(G) == 2) {
        while (beginning.first > first && row_at(order, tokens, vocabulary, beginning.first - 1) == row) {
            --beginning.first;
        }
    }
    // Later chunks that begin with this run.
    uint32_t count = 0;
    uint32_t found = 32;
    while (found == 32) {
        const uint64_t start = next + static_cast<uint64_t>(count + threadIdx.x % 32) * CHUNK;
        const bool same = start < token_count &&
                          row_at(order, tokens, vocabulary, static_cast<uint32_t>(start)) == row;
        found = __popc(__ballot_sync(FULL_WARP, same));
        count += found;
    }
    dtable += static_cast<uint64_t>(row) * channels;
    partials += static_cast<uint64_t>(chunk + 1) * channels;
    const uint32_t begin = blockIdx.y * CHANNELS;
    const uint32_t end = min(channels, begin + CHANNELS);
    if (channels % 4 == 0) {
        add_partials<4>(dtable, beginning, partials, count, channels, begin, end, scale, accumulate);
    } else {
        add_partials<1>(dtable, beginning, partials, count, channels, begin, end, scale, accumulate);
    }
}

#define EMBEDDING_FINISH(X, G, suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) embedding_table_finish_##suffix(                     \
        G* __restrict__ dtable, const float* __restrict__ partials, const uint32_t* __restrict__ order,              \
        const int* __restrict__ tokens, const X* __restrict__ dx, uint32_t token_count, uint32_t vocabulary,         \
        uint32_t channels, float scale, uint32_t accumulate) {                                                       \
        finish_runs(dtable, partials, order, tokens, dx, token_count, vocabulary, channels, scale, accumulate);      \
    }                                                                                                                \
    REGISTER(embedding_table_finish_##suffix)

EMBEDDING_FINISH(float, float, f32_f32)
EMBEDDING_FINISH(float, bf16, f32_bf16)
EMBEDDING_FINISH(bf16, float, bf16_f32)
EMBEDDING_FINISH(bf16, bf16, bf16_bf16)
EMBEDDING_FINISH(float, f16, f32_f16)
EMBEDDING_FINISH(f16, float, f16_f32)
EMBEDDING_FINISH(f16, f16, f16_f16)
