// Activation functions: alone, after an addition or a matmul (epilogue), and as gates.
#include "activations.cuh"
#include "elementwise.cuh"

// y[i] = f(x[i]). `y` may be `x`.
template <class F, class T>
__device__ __forceinline__ void activate(T* y, const T* x, uint64_t count) {
    each_run<T>(count, [&](auto run, uint64_t at) {
        float values[run.size];
        load_values(values, x + at);
#pragma unroll
        for (float& value : values) value = F::value(value);
        store_values(y + at, values);
    });
}

// before[i] = a[i] + b[i]; y[i] = f(before[i]). `before` may be `a`, and `y` may be `b`.
template <class F, class T>
__device__ __forceinline__ void add_and_activate(T* y, T* before, const T* a, const T* b, uint64_t count) {
    each_run<T>(count, [&](auto run, uint64_t at) {
        float sums[run.size], others[run.size];
        load_values(sums, a + at);
        load_values(others, b + at);
#pragma unroll
        for (int i = 0; i < run.size; ++i) {
            sums[i] += others[i];
            others[i] = F::value(sums[i]);
        }
        store_values(before + at, sums);
        store_values(y + at, others);
    });
}

// dx[i] = dy[i] * f'(x[i]), from the saved value of the activation.
template <class F, class T>
__device__ __forceinline__ void activation_backward(T* dx, const T* dy, const T* saved, uint64_t count) {
    map2(dx, dy, saved, count, [](float dy, float saved) { return dy * F::slope(saved); });
}

// before[r, c] += bias[c]; y[r, c] = f(before[r, c]) + residual[r, c]. `bias` and `residual` may be null, and
// `residual` may be `y`.
template <class F, class T, class Y>
__device__ __forceinline__ void finish(Y* y, T* before, const Y* bias, const Y* residual, uint32_t rows,
                                       uint32_t columns) {
    // Null pointers are aligned.
    const bool aligned = is_vector_aligned(y) && is_vector_aligned(before) && is_vector_aligned(bias) &&
                         is_vector_aligned(residual);
    each_run_of_rows<Vector<T>::size>(rows, columns, aligned, [&](auto run, uint32_t row, uint32_t c) {
        const uint64_t at = static_cast<uint64_t>(row) * columns + c;
        float sums[run.size], biases[run.size] = {}, results[run.size] = {};
        load_values(sums, before + at);
        if (bias != nullptr) load_values(biases, bias + c);
        if (residual != nullptr) load_values(results, residual + at);
#pragma unroll
        for (int i = 0; i < run.size; ++i) {
            sums[i] += biases[i];
            results[i] = F::value(sums[i]) + results[i];
        }
        store_values(before + at, sums);
        store_values(y + at, results);
    });
}

// y[r, c] = f(gate[r, c]) * up[r, c]. Rows of `both` hold the gate, then `up`.
template <class F, class T>
__device__ __forceinline__ void gate(T* y, const T* both, uint32_t rows, uint32_t columns) {
    each_run_of_rows<Vector<T>::size>(rows, columns, true, [&](auto run, uint32_t row, uint32_t c) {
        const T* source = both + static_cast<uint64_t>(row) * 2 * columns + c;
        float gates[run.size], ups[run.size];
        load_values(gates, source);
        load_values(ups, source + columns);
#pragma unroll
        for (int i = 0; i < run.size; ++i) ups[i] = F::value(gates[i]) * ups[i];
        store_values(y + static_cast<uint64_t>(row) * columns + c, ups);
    });
}

// The gradients of the gate and of `up`. `dboth` may be `both`.
template <class F, class T>
__device__ __forceinline__ void gate_backward(T* dboth, const T* dy, const T* both, uint32_t rows, uint32_t columns) {
    each_run_of_rows<Vector<T>::size>(rows, columns, true, [&](auto run, uint32_t row, uint32_t c) {
        const uint64_t at = static_cast<uint64_t>(row) * 2 * columns + c;
        float gates[run.size], ups[run.size], slopes[run.size];
        load_values(gates, both + at);
        load_values(ups, both + at + columns);
        load_values(slopes, dy + static_cast<uint64_t>(row) * columns + c);
#pragma unroll
        for (int i = 0; i < run.size; ++i) {
            const float gate = gates[i], d = slopes[i];
            gates[i] = d * ups[i] * F::slope(F::KEEPS_RESULT ? F::value(gate) : gate);
            ups[i] = d * F::value(gate);
        }
        store_values(dboth + at, gates);
        store_values(dboth + at + columns, ups);
    });
}

#define ACTIVATION(F, name, T, suffix)                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK) name##_##suffix(T* y, const T* x, uint64_t count) {          \
        activate<F>(y, x, count);                                                                                    \
    }                                                                                                                \
    REGISTER(name##_##suffix)                                                                                        \
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
        name##_gate_##suffix(T* __restrict__ y, const T* __restrict__ both, uint32_t rows, uint32_t columns) {       \
        gate<F>(y, both, rows, columns);                                                                             \
    }                                                                                                                \
    REGISTER(name##_gate_##suffix)                                                                                   \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name##_gate_backward_##suffix(T* dboth, const T* dy, const T* both, uint32_t rows, uint32_t columns) {       \
        gate_backward<F>(dboth, dy, both, rows, columns);                                                            \
    }                                                                                                                \
    REGISTER(name##_gate_backward_##suffix)

#define FINISH(F, kernel, T, Y)                                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        kernel(Y* y, T* before, const Y* bias, const Y* residual, uint32_t rows, uint32_t columns) {                 \
        finish<F>(y, before, bias, residual, rows, columns);                                                         \
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
