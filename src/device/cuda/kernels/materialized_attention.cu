// Attention that stores its scores: products of all heads at a time, and the softmax between them.
//
// B batch, T sequence, H heads. Scores, probabilities and their gradients are [B, H, T, T].
#include "reductions.cuh"

constexpr int THREADS = 256;
constexpr int ROW_WARPS = THREADS / 32;
// What a block of a product computes, and how much of the inner dimension it takes at a time.
constexpr int SIDE = 64;
constexpr int DEPTH = 16;
// Threads across such a tile, and the elements apart that each has of a row or a column.
constexpr int ACROSS = 16;
constexpr int EACH = SIDE / ACROSS;

// A matrix of each head: elements from one batch element, head, row and column to the next.
struct Matrices {
    uint64_t batch;
    uint64_t head;
    uint64_t row;
    uint64_t column;

    __device__ __forceinline__ uint64_t of(int batch_index, int head_index) const {
        return batch_index * batch + head_index * head;
    }
};

struct Product {
    Matrices out;
    Matrices left;
    Matrices right;
    int rows;
    int inner;
    int columns;
    int heads;
    float factor;
    int padding;
};

// Loads a tile [SIDE, DEPTH] of a matrix, zero beyond its bounds, in the order in which its elements lie.
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

// out = factor left right: a block takes a tile of one head's.
template <class T>
__device__ __forceinline__ void attention_product(T* out, const T* left, const T* right,
                                                  const Product& product) {
    __shared__ float lefts[DEPTH][SIDE + 1];
    __shared__ float rights[DEPTH][SIDE + 1];
    const int tiles_across = (product.columns + SIDE - 1) / SIDE;
    const int tiles = (product.rows + SIDE - 1) / SIDE * tiles_across;
    const int tile = blockIdx.x % tiles, batch_head = blockIdx.x / tiles;
    const int batch = batch_head / product.heads, head = batch_head % product.heads;
    out += product.out.of(batch, head);
    left += product.left.of(batch, head);
    right += product.right.of(batch, head);
    const int first_row = tile / tiles_across * SIDE, first_column = tile % tiles_across * SIDE;
    const int down = threadIdx.x / ACROSS, across = threadIdx.x % ACROSS;
    float sums[EACH][EACH] = {};
    for (int depth = 0; depth < product.inner; depth += DEPTH) {
        load(lefts, left, product.left.row, product.left.column, first_row, product.rows, depth,
             product.inner);
        load(rights, right, product.right.column, product.right.row, first_column, product.columns, depth,
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
#pragma unroll
    for (int i = 0; i < EACH; i++) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int row = first_row + down + i * ACROSS, column = first_column + across + j * ACROSS;
            if (row < product.rows && column < product.columns) {
                out[row * product.out.row + column * product.out.column] =
                    from_float<T>(sums[i][j] * product.factor);
            }
        }
    }
}

// The softmax of the scores that each query sees, zero beyond: a warp takes a query.
template <class T>
__device__ __forceinline__ void attention_softmax(T* probabilities, const T* scores, uint64_t rows,
                                                  uint32_t sequence) {
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    const uint32_t lane = threadIdx.x % 32, seen = row % sequence + 1;
    probabilities += row * sequence;
    scores += row * sequence;
    float largest = -INFINITY;
    for (uint32_t key = lane; key < seen; key += 32) {
        largest = fmaxf(largest, to_float(scores[key]));
    }
    largest = warp_max(largest);
    float sum = 0.0f;
    for (uint32_t key = lane; key < seen; key += 32) {
        sum += expf(to_float(scores[key]) - largest);
    }
    const float share = 1.0f / warp_sum(sum);
    for (uint32_t key = lane; key < sequence; key += 32) {
        const float weight = key < seen ? expf(to_float(scores[key]) - largest) * share : 0.0f;
        probabilities[key] = from_float<T>(weight);
    }
}

// dscores = factor probabilities (dprobabilities - the sum of their products), zero beyond what a query sees.
template <class T>
__device__ __forceinline__ void attention_softmax_backward(T* dscores, const T* dprobabilities,
                                                           const T* probabilities, uint64_t rows,
                                                           uint32_t sequence, float factor) {
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * ROW_WARPS + threadIdx.x / 32;
    if (row >= rows) {
        return;
    }
    const uint32_t lane = threadIdx.x % 32, seen = row % sequence + 1;
    dscores += row * sequence;
    dprobabilities += row * sequence;
    probabilities += row * sequence;
    float along = 0.0f;
    for (uint32_t key = lane; key < seen; key += 32) {
        along = fmaf(to_float(probabilities[key]), to_float(dprobabilities[key]), along);
    }
    along = warp_sum(along);
    for (uint32_t key = lane; key < sequence; key += 32) {
        const float apart = key < seen ? to_float(dprobabilities[key]) - along : 0.0f;
        dscores[key] = from_float<T>(to_float(probabilities[key]) * apart * factor);
    }
}

#define MATERIALIZED_ATTENTION(NAME, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        attention_product_##NAME(T* out, const T* left, const T* right, Product product) {                  \
        attention_product<T>(out, left, right, product);                                                    \
    }                                                                                                       \
    REGISTER(attention_product_##NAME)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                   \
        attention_softmax_##NAME(T* probabilities, const T* scores, uint64_t rows, uint32_t sequence) {     \
        attention_softmax<T>(probabilities, scores, rows, sequence);                                        \
    }                                                                                                       \
    REGISTER(attention_softmax_##NAME)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_softmax_backward_##NAME(                \
        T* dscores, const T* dprobabilities, const T* probabilities, uint64_t rows, uint32_t sequence,      \
        float factor) {                                                                                     \
        attention_softmax_backward<T>(dscores, dprobabilities, probabilities, rows, sequence, factor);      \
    }                                                                                                       \
    REGISTER(attention_softmax_backward_##NAME)

MATERIALIZED_ATTENTION(f32, float)
MATERIALIZED_ATTENTION(bf16, bf16)
MATERIALIZED_ATTENTION(f16, f16)
