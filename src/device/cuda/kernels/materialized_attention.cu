// Attention that materializes its scores: batched products over all heads, with the softmax between them.
//
// B batch, T sequence, H query heads, G key/value heads. Each key/value head is shared by H / G consecutive query heads
// (grouped-query attention). Scores, probabilities and their gradients are [B, H, T, T].
#include "reductions.cuh"

constexpr int THREADS = 256;
constexpr int ROW_WARPS = THREADS / 32;
// Side of the square tile of results that a block computes, and length of the inner dimension per step.
constexpr int SIDE = 64;
constexpr int DEPTH = 16;
// Threads per row and per column of the tile, and elements per thread along each, ACROSS apart.
constexpr int ACROSS = 16;
constexpr int EACH = SIDE / ACROSS;

// One matrix for every `shared` consecutive heads. The others are strides in elements: between batch elements,
// matrices, rows and columns.
struct Matrices {
    uint64_t batch;
    uint64_t head;
    uint64_t row;
    uint64_t column;
    uint64_t shared;

    __device__ __forceinline__ uint64_t of(int batch_index, int head_index) const {
        return batch_index * batch + head_index / static_cast<int>(shared) * head;
    }
};

struct Product {
    Matrices out;
    Matrices left;
    Matrices right;
    int rows;
    int inner;
    int columns;
    // Heads of the result.
    int heads;
    // The products of this many consecutive heads are summed.
    int summed;
    float factor;
    // Softcap of the results; 0 without a cap.
    float cap;
    int padding;
};

// Loads a tile [SIDE, DEPTH] of a matrix, zero outside of its bounds. Threads follow the memory order of the elements
// (coalesced).
template <class T>
__device__ __forceinline__ void load(float (&tile)[DEPTH][SIDE + 1], const T* matrix, uint64_t stride,
                                     uint64_t step, int first, int count, int depth, int inner) {
#pragma unroll
    for (int part = 0; part < SIDE * DEPTH / THREADS; part++) {
        const int item = threadIdx.x + part * THREADS;
        const int i = step == 1 ? item / DEPTH : item % SIDE;
        const int k = step == 1 ? item % DEPTH : item / SIDE;
        const bool inside = first + i < count && depth + k < inner;
        tile[k][i] = inside ? to_float(matrix[(first + i) * stride + (depth + k) * step]) : 0.0f;
    }
}

// out = cap(factor left right), summed over `summed` heads: a block computes one tile of one head's result.
template <class T>
__device__ __forceinline__ void attention_product(T* out, const T* left, const T* right,
                                                  const Product& product) {
    __shared__ float lefts[DEPTH][SIDE + 1];
    __shared__ float rights[DEPTH][SIDE + 1];
    const int tiles_across = (product.columns + SIDE - 1) / SIDE;
    const int tiles = (product.rows + SIDE - 1) / SIDE * tiles_across;
    const int tile = blockIdx.x % tiles, batch_head = blockIdx.x / tiles;
    const int batch = batch_head / product.heads, head = batch_head % product.heads;
    out += batch * product.out.batch + head * product.out.head;
    const int first_row = tile / tiles_across * SIDE, first_column = tile % tiles_across * SIDE;
    const int down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
    float sums[EACH][EACH] = {};
    for (int member = head * product.summed; member < (head + 1) * product.summed; member++) {
        const T* lefts_of = left + product.left.of(batch, member);
        const T* rights_of = right + product.right.of(batch, member);
        for (int depth = 0; depth < product.inner; depth += DEPTH) {
            load(lefts, lefts_of, product.left.row, product.left.column, first_row, product.rows, depth,
                 product.inner);
            load(rights, rights_of, product.right.column, product.right.row, first_column, product.columns, depth,
                 product.inner);
            __syncthreads();
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
#pragma unroll
                    for (int j = 0; j < EACH; j++) {
                        sums[i][j] =
                            fmaf(lefts[k][down + i * ACROSS], rights[k][across + j * ACROSS], sums[i][j]);
                    }
                }
            }
            __syncthreads();
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int row = first_row + down + i * ACROSS, column = first_column + across + j * ACROSS;
            if (row < product.rows && column < product.columns) {
                const float result = sums[i][j] * product.factor;
                const bool is_capped = product.cap > 0.0f;
                out[row * product.out.row + column * product.out.column] =
                    from_float<T>(is_capped ? product.cap * tanhf(result / product.cap) : result);
            }
        }
    }
}

// The keys that a query sees: `ahead` keys after its own position, and the last `window` positions up to and including
// its own.
struct Seen {
    uint32_t sequence;
    uint32_t ahead;
    uint32_t window;
    uint32_t padding;

    __device__ __forceinline__ uint32_t first(uint32_t query) const {
        return query + 1 > window ? query + 1 - window : 0;
    }

    __device__ __forceinline__ uint32_t after(uint32_t query) const { return min(sequence, query + ahead + 1); }
};

// Softmax of the scores of the keys that each query sees, zero elsewhere. One warp per query. `starts` [B, T], the
// starts of the documents, masks the keys before the query's document; it may be null.
template <class T>
__device__ __forceinline__ void attention_softmax(T* probabilities, const T* scores, uint64_t rows, const Seen& seen,
                                                  const int* starts, uint32_t heads) {
    const uint32_t sequence = seen.sequence;
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    const uint32_t lane = threadIdx.x % 32, query = row % sequence;
    const uint64_t batch = row / sequence / heads;
    const uint32_t start = starts == nullptr ? 0 : starts[batch * sequence + query];
    const uint32_t first = max(seen.first(query), start), after = seen.after(query);
    probabilities += row * sequence;
    scores += row * sequence;
    float largest = -INFINITY;
    for (uint32_t key = first + lane; key < after; key += 32) {
        largest = fmaxf(largest, to_float(scores[key]));
    }
    largest = warp_max(largest);
    float sum = 0.0f;
    for (uint32_t key = first + lane; key < after; key += 32) {
        sum += expf(to_float(scores[key]) - largest);
    }
    const float share = 1.0f / warp_sum(sum);
    for (uint32_t key = lane; key < sequence; key += 32) {
        const bool is_seen = key >= first && key < after;
        const float weight = is_seen ? expf(to_float(scores[key]) - largest) * share : 0.0f;
        probabilities[key] = from_float<T>(weight);
    }
}

// dscores = factor probabilities (dprobabilities - sum of probabilities dprobabilities), zero for keys that the query
// does not see; with a softcap, times its derivative, computed from the capped `scores`, which are null without a cap.
template <class T>
__device__ __forceinline__ void attention_softmax_backward(T* dscores, const T* dprobabilities, const T* probabilities,
                                                           const T* scores, uint64_t rows, const Seen& seen,
                                                           float factor, float cap) {
    const uint32_t sequence = seen.sequence;
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    const uint32_t lane = threadIdx.x % 32, query = row % sequence;
    const uint32_t first = seen.first(query), after = seen.after(query);
    dscores += row * sequence;
    dprobabilities += row * sequence;
    probabilities += row * sequence;
    float along = 0.0f;
    for (uint32_t key = first + lane; key < after; key += 32) {
        along = fmaf(to_float(probabilities[key]), to_float(dprobabilities[key]), along);
    }
    along = warp_sum(along);
    for (uint32_t key = lane; key < sequence; key += 32) {
        const bool is_seen = key >= first && key < after;
        float gradient = is_seen ? to_float(probabilities[key]) * (to_float(dprobabilities[key]) - along) * factor : 0.0f;
        if (scores != nullptr) {
            const float share = to_float(scores[row * sequence + key]) / cap;
            gradient *= 1.0f - share * share;
        }
        dscores[key] = from_float<T>(gradient);
    }
}

#define MATERIALIZED_ATTENTION(NAME, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        attention_product_##NAME(T* out, const T* left, const T* right, Product product) {                  \
        attention_product<T>(out, left, right, product);                                                    \
    }                                                                                                       \
    REGISTER(attention_product_##NAME)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        attention_softmax_##NAME(T* probabilities, const T* scores, uint64_t rows, Seen seen,               \
                                 const int* __restrict__ starts, uint32_t heads) {                          \
        attention_softmax<T>(probabilities, scores, rows, seen, starts, heads);                             \
    }                                                                                                       \
    REGISTER(attention_softmax_##NAME)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_softmax_backward_##NAME(                \
        T* dscores, const T* dprobabilities, const T* probabilities, const T* scores, uint64_t rows,        \
        Seen seen, float factor, float cap) {                                                               \
        attention_softmax_backward<T>(dscores, dprobabilities, probabilities, scores, rows, seen, factor,   \
                                      cap);                                                                 \
    }                                                                                                       \
    REGISTER(attention_softmax_backward_##NAME)

MATERIALIZED_ATTENTION(f32, float)
MATERIALIZED_ATTENTION(bf16, bf16)
MATERIALIZED_ATTENTION(f16, f16)
