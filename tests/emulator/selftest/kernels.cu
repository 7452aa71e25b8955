// Small correct kernels, and small wrong kernels whose errors the emulator must detect.
#include "compat.cuh"

// ---- correct ----

extern "C" __global__ void scale(float* y, const float* x, float factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
REGISTER(scale)

// y[row] = sum of x[row, 0..n], through shuffles and static shared memory.
extern "C" __global__ void row_sums(float* y, const float* x, int n) {
    __shared__ float partial[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0;
        for (int i = 0; i < static_cast<int>(blockDim.x) / 32; i++) total += partial[i];
        y[blockIdx.x] = total;
    }
}
REGISTER(row_sums)

// One warp: the result of every kind of shuffle and vote in each lane.
extern "C" __global__ void warp_operations(int* out) {
    const int lane = threadIdx.x;
    int* row = out + 16 * lane;
    row[0] = __shfl_sync(~0u, lane, 5);
    row[1] = __shfl_sync(~0u, lane, 3, 8);
    row[2] = __shfl_up_sync(~0u, lane, 2);
    row[3] = __shfl_down_sync(~0u, lane, 2);
    row[4] = __shfl_down_sync(~0u, lane, 3, 8);
    row[5] = __shfl_xor_sync(~0u, lane, 9);
    row[6] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
    row[7] = __any_sync(~0u, lane == 7);
    row[8] = __all_sync(~0u, lane < 31);
    row[9] = static_cast<int>(__match_any_sync(~0u, lane / 4));
    row[10] = __reduce_max_sync(~0u, lane * 7 % 32);
    if (lane < 16) {
        row[11] = __shfl_xor_sync(0xffffu, lane, 1);
    } else {
        row[11] = __shfl_xor_sync(0xffff0000u, lane, 2);
    }
}
REGISTER(warp_operations)

extern "C" __global__ void atomics(unsigned* counts, float* sum) {
    atomicAdd(&counts[0], 1);
    atomicMax(&counts[1], blockIdx.x);
    atomicAdd(sum, 0.5f);
}
REGISTER(atomics)

// d[16, 8] += a[16, 16] b[16, 8] of T, with the matrices loaded through shared memory; b is row-major and loaded with
// transposing loads.
template <class T>
__device__ void multiply_16x8x16(float* d, const T* a, const T* b) {
    __shared__ __align__(16) T left[16][24];
    __shared__ __align__(16) T right[16][8];
    const int lane = threadIdx.x;
    cp_async16(&left[lane % 16][lane / 16 * 8], a + lane % 16 * 16 + lane / 16 * 8);
    cp_commit();
    store_vector(right[lane % 16], load_vector(b + lane % 16 * 8));
    cp_wait(0);
    __syncthreads();
    uint32_t fragment_a[4], fragment_b[2];
    ldmatrix_x4(fragment_a, &left[lane % 16][lane / 16 * 8]);
    ldmatrix_x2_trans(fragment_b, right[lane % 16]);
    float sums[4] = {};
    mma_16816<T>(sums, fragment_a, fragment_b);
    for (int i = 0; i < 4; i++) d[(lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2] = sums[i];
}

extern "C" __global__ void multiply_bf16(float* d, const bf16* a, const bf16* b) {
    multiply_16x8x16(d, a, b);
}
REGISTER(multiply_bf16)

extern "C" __global__ void multiply_f16(float* d, const f16* a, const f16* b) { multiply_16x8x16(d, a, b); }
REGISTER(multiply_f16)

extern "C" __global__ void multiply_tf32(float* d, const float* a, const float* b) {
    const int group = threadIdx.x / 4, member = threadIdx.x % 4;
    uint32_t fragment_a[4], fragment_b[2];
    for (int i = 0; i < 4; i++) {
        fragment_a[i] = __float_as_uint(a[(group + i % 2 * 8) * 8 + member + i / 2 * 4]);
    }
    for (int i = 0; i < 2; i++) fragment_b[i] = __float_as_uint(b[(member + i * 4) * 8 + group]);
    float sums[4] = {};
    mma_tf32_1688(sums, fragment_a, fragment_b);
    for (int i = 0; i < 4; i++) d[(group + i / 2 * 8) * 8 + 2 * member + i % 2] = sums[i];
}
REGISTER(multiply_tf32)

// The registers of each lane after every kind of `ldmatrix` of a [32, 8] tile of the numbers 0 to 255.
extern "C" __global__ void matrix_loads(uint32_t* out) {
    DYN_SHARED(uint16_t, tile);
    const int lane = threadIdx.x;
    for (int i = 0; i < 8; i++) tile[8 * lane + i] = static_cast<uint16_t>(8 * lane + i);
    __syncthreads();
    uint32_t* row = out + 16 * lane;
    ldmatrix_x1(row, &tile[8 * (lane % 8)]);
    ldmatrix_x2(row + 1, &tile[8 * (lane % 16)]);
    ldmatrix_x4(row + 3, &tile[8 * lane]);
    ldmatrix_x1_trans(row + 7, &tile[8 * (lane % 8)]);
    ldmatrix_x2_trans(row + 8, &tile[8 * (lane % 16)]);
    ldmatrix_x4_trans(row + 10, &tile[8 * lane]);
}
REGISTER(matrix_loads)

// ---- wrong ----

extern "C" __global__ void lacks_barrier(float* y, const float* x) {
    __shared__ float reversed[256];
    reversed[255 - threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = reversed[threadIdx.x];
}
REGISTER(lacks_barrier)

extern "C" __global__ void diverges_at_barrier(float* y) {
    if (threadIdx.x < 16) {
        __syncthreads();
        y[threadIdx.x] = 1;
    } else {
        y[threadIdx.x] = 2;
        __syncthreads();
    }
}
REGISTER(diverges_at_barrier)

extern "C" __global__ void diverges_at_shuffle(float* y) {
    float value = threadIdx.x;
    if (threadIdx.x < 16) value = __shfl_xor_sync(~0u, value, 1);
    __syncthreads();
    y[threadIdx.x] = value;
}
REGISTER(diverges_at_shuffle)

extern "C" __global__ void reads_absent_lane(float* y) {
    y[threadIdx.x] = 0;
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
REGISTER(reads_absent_lane)

extern "C" __global__ void reads_unset_dynamic_shared(float* y) {
    DYN_SHARED(float, values);
    if (threadIdx.x < 16) values[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = values[threadIdx.x];
}
REGISTER(reads_unset_dynamic_shared)

extern "C" __global__ void reads_unset_static_shared(float* y) {
    __shared__ float values[32];
    // The first block leaves values that the second must not see.
    if (blockIdx.x == 0 || threadIdx.x < 16) values[threadIdx.x] = 1;
    __syncthreads();
    y[blockIdx.x * 32 + threadIdx.x] = values[threadIdx.x];
}
REGISTER(reads_unset_static_shared)

extern "C" __global__ void lacks_copy_wait(float* y, const float* x) {
    __shared__ __align__(16) float values[128];
    cp_async16(&values[4 * threadIdx.x], x + 4 * threadIdx.x);
    cp_commit();
    __syncthreads();
    y[threadIdx.x] = values[threadIdx.x];
    cp_wait(0);
}
REGISTER(lacks_copy_wait)

// Starts to overwrite the tile while other threads are still reading it.
extern "C" __global__ void copies_too_early(float* y, const float* x) {
    __shared__ __align__(16) float values[128];
    for (int tile = 0; tile < 2; tile++) {
        cp_async16(&values[4 * threadIdx.x], x + 128 * tile + 4 * threadIdx.x);
        cp_commit();
        cp_wait(0);
        __syncthreads();
        y[32 * tile + threadIdx.x] = values[127 - threadIdx.x];
    }
}
REGISTER(copies_too_early)

extern "C" __global__ void runs_out_of_bounds(float* y, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) y[i] = x[i];
}
REGISTER(runs_out_of_bounds)

extern "C" __global__ void loads_misaligned_vector(float* y, const float* x) {
    store_vector(y, load_vector(x + 1));
}
REGISTER(loads_misaligned_vector)

extern "C" __global__ void loads_matrix_from_global(uint32_t* out, const float* x) {
    ldmatrix_x1(out + threadIdx.x, x);
}
REGISTER(loads_matrix_from_global)
