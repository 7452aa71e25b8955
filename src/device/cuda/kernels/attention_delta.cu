// delta[B, H, T] = sum of dout * out over the channels of each query and head. The backward passes subtract it from the
// gradient of each of the query's weights.
#include "attention_blocks.cuh"

constexpr int DELTA_THREADS = 256;
// Lanes per query: together they read 128 bytes at a time.
constexpr int DELTA_LANES = 8;

template <class T>
__device__ __forceinline__ void attention_delta(float* delta, const T* dout, const T* out,
                                                const AttentionSizes& sizes) {
    const size_t item =
        static_cast<size_t>(blockIdx.x) * (DELTA_THREADS / DELTA_LANES) + threadIdx.x / DELTA_LANES;
    const size_t items = static_cast<size_t>(sizes.batch) * sizes.heads * sizes.sequence;
    const int lane = threadIdx.x % DELTA_LANES;
    float sum = 0.0f;
    if (item < items) {
        const int batch_head = static_cast<int>(item / sizes.sequence);
        const int batch = batch_head / sizes.heads, head = batch_head % sizes.heads;
        const int query = static_cast<int>(item % sizes.sequence);
        const Rows<const T> rows = rows_of_out(dout, sizes, batch, head);
        const T* a = rows.row(query);
        const T* b = rows_of_out(out, sizes, batch, head).row(query);
        if (rows.by_vector) {
            constexpr int SIZE = Vector<T>::size;
            for (int i = lane * SIZE; i < sizes.head; i += DELTA_LANES * SIZE) {
                const Vector<T> left = load_vector(a + i), right = load_vector(b + i);
#pragma unroll
                for (int j = 0; j < SIZE; j++) {
                    sum = fmaf(left.get(j), right.get(j), sum);
                }
            }
        } else {
            for (int i = lane; i < sizes.head; i += DELTA_LANES) {
                sum = fmaf(to_float(a[i]), to_float(b[i]), sum);
            }
        }
    }
#pragma unroll
    for (int distance = DELTA_LANES / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(~0u, sum, distance);
    }
    if (lane == 0 && item < items) {
        delta[item] = sum;
    }
}

#define ATTENTION_DELTA(NAME, T)                                                                  \
    extern "C" __global__ void __launch_bounds__(DELTA_THREADS)                                   \
        attention_delta_##NAME(float* delta, const T* dout, const T* out, AttentionSizes sizes) { \
        attention_delta<T>(delta, dout, out, sizes);                                              \
    }                                                                                             \
    REGISTER(attention_delta_##NAME)

ATTENTION_DELTA(f32, float)
ATTENTION_DELTA(bf16, bf16)
ATTENTION_DELTA(f16, f16)
