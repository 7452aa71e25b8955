// Activation functions: alone, after an addition or a matmul (epilogue), and as gates.
#include "activations.cuh"
#include "elementwise.cuh"

// before[i] = a[i] + b[i]; y[i] = f(before[i]). `before` may be `a`, and `y` may be `b`.
template <class F, class T>
__device__ __forceinline__ void add_and_activate(T* y, T* before, const T* a, const T* b, uint64_t count) {
    each(count, [&](uint64_t i) {
        const float sum = to_float(a[i]) + to_float(b[i]);
        before[i] = from_float<T>(sum);
        y[i] = from_float<T>(F::value(sum));
    });
}

// dx[i] = dy[i] * f'(x[i])
template <class F, class T>
__device__ __forceinline__ void activation_backward(T* dx, const T* dy, const T* x, uint64_t count) {
    map2(dx, dy, x, count, [](float dy, float x) { return dy * F::slope(x); });
}

// Calls `work` for the columns of this block, which processes 4 * BLOCK columns of one row.
template <class Work>
__device__ __forceinline__ void each_column(uint32_t columns, Work work) {
    const uint32_t end = min(columns, (blockIdx.y + 1) * 4 * BLOCK);
    for (uint32_t c = blockIdx.y * 4 * BLOCK + threadIdx.x; c < end; c += BLOCK) work(c);
}

// before[r, c] += bias[c]; y[r, c] = f(before[r, c]) + residual[r, c]. `bias` and `residual` may be null, and
// `residual` may be `y`.
template <class F, class T, class Y>
__device__ __forceinline__ void finish(Y* y, T* before, const Y* bias, const Y* residual, uint32_t columns) {
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * columns;
    each_column(columns, [&](uint32_t c) {
        const float x = to_float(before[start + c]) + (bias == nullptr ? 0.0f : to_float(bias[c]));
        before[start + c] = from_float<T>(x);
        y[start + c] = from_float<Y>(F::value(x) + (residual == nullptr ? 0.0f : to_float(residual[start + c])));
    });
}

// y[r, c] = f(gate[r, c]) * up[r, c]. Rows of `both` hold the gate, then `up`.
template <class F, class T>
__device__ __forceinline__ void gate(T* y, const T* both, uint32_t columns) {
    y += static_cast<uint64_t>(blockIdx.x) * columns;
    both += static_cast<uint64_t>(blockIdx.x) * 2 * columns;
    each_column(columns, [&](uint32_t c) {
        y[c] = from_float<T>(F::value(to_float(both[c])) * to_float(both[columns + c]));
    });
}

// The gradients of the gate and of `up`. `dboth` may be `both`.
template <class F, class T>
__device__ __forceinline__ void gate_backward(T* dboth, const T* dy, const T* both, uint32_t columns) {
    dboth += static_cast<uint64_t>(blockIdx.x) * 2 * columns;
    both += static_cast<uint64_t>(blockIdx.x) * 2 * columns;
    dy += static_cast<uint64_t>(blockIdx.x) * columns;
    each_column(columns, [&](uint32_t c) {
        const float gate = to_float(both[c]), up = to_float(both[columns + c]), d = to_float(dy[c]);
        dboth[c] = from_float<T>(d * up * F::slope(gate));
        dboth[columns + c] = from_float<T>(d * F::value(gate));
    });
}

#define ACTIVATION(F, name, T, suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name##_add_##suffix(T* y, T* before, const T* a, const T* b, uint64_t count) {                               \
        add_and_activate<F>(y, before, a, b, count);                                                                 \
    }                                                                                                                \
    REGISTER(name##_add_##suffix)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name##_backward_##suffix(T* dx, const T* dy, const T* x, uint64_t count) {                                   \
        activation_backward<F>(dx, dy, x, count);                                                                    \
    }                                                                                                                \
    REGISTER(name##_backward_##suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name##_gate_##suffix(T* __restrict__ y, const T* __restrict__ both, uint32_t columns) {                      \
        gate<F>(y, both, columns);                                                                                   \
    }                                                                                                                \
    REGISTER(name##_gate_##suffix)                                                                                   \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name##_gate_backward_##suffix(T* dboth, const T* dy, const T* both, uint32_t columns) {                      \
        gate_backward<F>(dboth, dy, both, columns);                                                                  \
    }                                                                                                                \
    REGISTER(name##_gate_backward_##suffix)

#define FINISH(F, kernel, T, Y)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        kernel(Y* y, T* before, const Y* bias, const Y* residual, uint32_t columns) {                                \
        finish<F>(y, before, bias, residual, columns);                                                               \
    }                                                                                                                \
    REGISTER(kernel)

#define ALL(F, name)                                                                                                 \
    ACTIVATION(F, name, float, f32)                                                                                  \
    ACTIVATION(F, name, bf16, bf16)                                                                                  \
    ACTIVATION(F, name, f16, f16)                                                                                    \
    FINISH(F, name##_finish_f32, float, float)                                                                       \
    FINISH(F, name##_finish_bf16, bf16, bf16)                                                                        \
    FINISH(F, name##_finish_f16, f16, f16)                                                                           \
    FINISH(F, name##_finish_bf16_residual, bf16, float)                                                              \
    FINISH(F, name##_finish_f16_residual, f16, float)

EACH_ACTIVATION(ALL)
