// Softmax and cross-entropy of rows of V logits, with a softcap, smoothed labels or neither; and the accuracy.
#include "reductions.cuh"
#include "vectors.cuh"

// Below every logit, but finite, so that e^(LOWEST - x) is 0 for every logit x, and never NaN.
constexpr float LOWEST = -3.402823466e38f;

// For 16-bit logits the fast exponential, whose error is 2 + 1.2 |x| ULP of f32 for x <= 0. For every probability that
// a 16-bit gradient can represent, that is far below the rounding of the gradient.
template <class T>
__device__ __forceinline__ float exponential(float x) {
    if constexpr (sizeof(T) == 4) {
        return expf(x);
    } else {
        return __expf(x);
    }
}

// Online softmax: the running maximum of the logits, and the sum of exponentials relative to it.
template <class T>
struct Softmax {
    float largest = LOWEST;
    float sum = 0.0f;

    template <int N>
    __device__ __forceinline__ void add(const float (&logits)[N]) {
        float top = logits[0];
#pragma unroll
        for (int i = 1; i < N; ++i) top = fmaxf(top, logits[i]);
        if (top > largest) {
            sum *= exponential<T>(largest - top);
            largest = top;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) sum += exponential<T>(logits[i] - largest);
    }

    // Reduces over all threads of the block.
    __device__ __forceinline__ void join() {
        const float top = block_max(largest);
        sum = block_sum(sum * exponential<T>(largest - top));
        largest = top;
    }
};

// A row split into aligned 16-byte vectors and the elements before and after them: rows may start unaligned.
template <class T>
struct Row {
    uint32_t head;
    uint32_t vectors;
    uint32_t edges;

    __device__ __forceinline__ Row(const T* row, uint32_t len) {
        const uint32_t past = reinterpret_cast<uint64_t>(row) % 16 / sizeof(T);
        head = min(len, past == 0 ? 0 : Vector<T>::size - past);
        vectors = (len - head) / Vector<T>::size;
        edges = len - vectors * Vector<T>::size;
    }

    // Index of the first element of vector `i`.
    __device__ __forceinline__ uint32_t vector(uint32_t i) const { return head + i * Vector<T>::size; }

    // Index of element `i` of the edges.
    __device__ __forceinline__ uint32_t edge(uint32_t i) const {
        return i < head ? i : i + vectors * Vector<T>::size;
    }
};

// No softcap.
struct Uncapped {
    __device__ __forceinline__ float of(float logit) const { return logit; }
    __device__ __forceinline__ float slope(float) const { return 1.0f; }
};

struct Capped {
    float cap;

    __device__ __forceinline__ float of(float logit) const { return cap * tanhf(logit / cap); }

    // Derivative of the softcap, computed from the capped logit.
    __device__ __forceinline__ float slope(float within) const {
        const float share = within / cap;
        return 1.0f - share * share;
    }
};

// The target is a class.
struct Hard {
    template <int N>
    __device__ __forceinline__ void add(const float (&)[N]) {}
    __device__ __forceinline__ float logit(float of_target, uint32_t) { return of_target; }
    __device__ __forceinline__ float gradient(float probability, bool is_target, float scale, uint32_t) const {
        return is_target ? probability - scale : probability;
    }
};

// The target is a distribution over the classes: 1 - smoothing of the target, and smoothing / V of each.
struct Smoothed {
    float smoothing;
    float sum;

    template <int N>
    __device__ __forceinline__ void add(const float (&logits)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum += logits[i];
    }

    // The mean logit under the distribution; reduces over all threads of the block.
    __device__ __forceinline__ float logit(float of_target, uint32_t classes) {
        return (1.0f - smoothing) * of_target + smoothing * (block_sum(sum) / classes);
    }

    __device__ __forceinline__ float gradient(float probability, bool is_target, float scale, uint32_t classes) const {
        const float of_each = probability - scale * (smoothing / classes);
        return is_target ? of_each - scale * (1.0f - smoothing) : of_each;
    }
};

// Weights of rows: one for each sample of `rows_of_sample` rows. `of` may be null (all 1).
struct Weights {
    const float* of;
    // Index of the first row among all rows of the batch.
    uint32_t first;
    uint32_t rows_of_sample;

    __device__ __forceinline__ float row(uint32_t row) const {
        return of == nullptr ? 1.0f : of[(first + row) / rows_of_sample];
    }
};

// One block per row, which it reads twice. The second pass, for the gradient, runs backwards, and so starts with the
// data most recently cached. `dlogits` may be null, or `logits` itself; `scaling` may be null.
template <class T, class Cap, class Target>
__device__ __forceinline__ void cross_entropy(float* losses, T* dlogits, const T* logits, const int* targets,
                                              const float* scaling, uint32_t vocabulary, float scale, Weights weights,
                                              Cap cap, Target label) {
    constexpr int WIDTH = Vector<T>::size;
    // Uniform across the block.
    if (weights.of != nullptr && targets[blockIdx.x] < 0) {
        if (threadIdx.x == 0) losses[blockIdx.x] = 0.0f;
        if (dlogits == nullptr) return;
        dlogits += static_cast<uint64_t>(blockIdx.x) * vocabulary;
        for (uint32_t i = threadIdx.x; i < vocabulary; i += blockDim.x) dlogits[i] = from_float<T>(0.0f);
        return;
    }
    const float weight = weights.row(blockIdx.x);
    scale *= weight;
    logits += static_cast<uint64_t>(blockIdx.x) * vocabulary;
    const Row<T> row(logits, vocabulary);
    const uint32_t target = targets[blockIdx.x];
    // Read before `dlogits` overwrites it. A target outside of the vocabulary gives NaN.
    const float logit = target < vocabulary ? cap.of(to_float(logits[target])) : not_a_number();

    Softmax<T> softmax;
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < row.vectors; i += blockDim.x) {
        float values[WIDTH];
        load_floats(values, logits + row.vector(i));
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) values[j] = cap.of(values[j]);
        softmax.add(values);
        label.add(values);
    }
    for (uint32_t i = threadIdx.x; i < row.edges; i += blockDim.x) {
        const float value[1] = {cap.of(to_float(logits[row.edge(i)]))};
        softmax.add(value);
        label.add(value);
    }
    softmax.join();
    const float expected = label.logit(logit, vocabulary);
    if (threadIdx.x == 0) {
        const double loss = log(static_cast<double>(softmax.sum)) + (static_cast<double>(softmax.largest) - expected);
        losses[blockIdx.x] = static_cast<float>(loss * weight);
    }
    if (dlogits == nullptr) return;

    dlogits += static_cast<uint64_t>(blockIdx.x) * vocabulary;
    if (scaling != nullptr) scale *= scaling[0];
    const float share = scale / softmax.sum;
    auto slope = [&](float before, uint32_t place) {
        const float value = cap.of(before);
        const float probability = exponential<T>(value - softmax.largest) * share;
        return label.gradient(probability, place == target, scale, vocabulary) * cap.slope(value);
    };
    for (uint32_t i = threadIdx.x; i < row.edges; i += blockDim.x) {
        const uint32_t place = row.edge(i);
        dlogits[place] = from_float<T>(slope(to_float(logits[place]), place));
    }
    const uint32_t rounds = (row.vectors + blockDim.x - 1) / blockDim.x;
#pragma unroll 2
    for (uint32_t round = rounds; round > 0; --round) {
        const uint32_t i = (round - 1) * blockDim.x + threadIdx.x;
        if (i < row.vectors) {
            const uint32_t place = row.vector(i);
            float values[WIDTH];
            load_floats(values, logits + place);
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) values[j] = slope(values[j], place + j);
            store_floats(dlogits + place, values);
        }
    }
}

// The weight of a row whose largest logit is the target's, else 0; of equal logits the first is the largest. One block
// per row.
template <class T>
__device__ __forceinline__ void correct_rows(float* correct, const T* logits, const int* targets, uint32_t classes,
                                             Weights weights) {
    logits += static_cast<uint64_t>(blockIdx.x) * classes;
    // A masked target is beyond all classes.
    const uint32_t target = targets[blockIdx.x];
    bool wrong = target >= classes;
    if (!wrong) {
        const float logit = to_float(logits[target]);
        for (uint32_t i = threadIdx.x; i < classes; i += blockDim.x) {
            const float other = to_float(logits[i]);
            wrong |= !(i < target ? other < logit : other <= logit);
        }
    }
    const bool is_wrong = block_max(wrong ? 1.0f : 0.0f) > 0.0f;
    if (threadIdx.x == 0) correct[blockIdx.x] = is_wrong ? 0.0f : weights.row(blockIdx.x);
}

#define CROSS_ENTROPY(T, suffix)                                                                                     \
    extern "C" __global__ void __launch_bounds__(1024) cross_entropy_##suffix(                                       \
        float* __restrict__ losses, T* dlogits, const T* logits, const int* __restrict__ targets,                    \
        const float* __restrict__ scaling, uint32_t vocabulary, float scale, const float* __restrict__ weights,      \
        uint32_t first, uint32_t rows_of_sample) {                                                                   \
        cross_entropy<T>(losses, dlogits, logits, targets, scaling, vocabulary, scale,                               \
                         Weights{weights, first, rows_of_sample}, Uncapped{}, Hard{});                               \
    }                                                                                                                \
    REGISTER(cross_entropy_##suffix)                                                                                 \
    extern "C" __global__ void __launch_bounds__(1024) cross_entropy_capped_##suffix(                                \
        float* __restrict__ losses, T* dlogits, const T* logits, const int* __restrict__ targets,                    \
        const float* __restrict__ scaling, uint32_t vocabulary, float scale, const float* __restrict__ weights,      \
        uint32_t first, uint32_t rows_of_sample, float cap) {                                                        \
        cross_entropy<T>(losses, dlogits, logits, targets, scaling, vocabulary, scale,                               \
                         Weights{weights, first, rows_of_sample}, Capped{cap}, Hard{});                              \
    }                                                                                                                \
    REGISTER(cross_entropy_capped_##suffix)                                                                          \
    extern "C" __global__ void __launch_bounds__(1024) cross_entropy_smoothed_##suffix(                              \
        float* __restrict__ losses, T* dlogits, const T* logits, const int* __restrict__ targets,                    \
        const float* __restrict__ scaling, uint32_t vocabulary, float scale, const float* __restrict__ weights,      \
        uint32_t first, uint32_t rows_of_sample, float smoothing) {                                                  \
        cross_entropy<T>(losses, dlogits, logits, targets, scaling, vocabulary, scale,                               \
                         Weights{weights, first, rows_of_sample}, Uncapped{}, Smoothed{smoothing, 0.0f});            \
    }                                                                                                                \
    REGISTER(cross_entropy_smoothed_##suffix)                                                                        \
    extern "C" __global__ void __launch_bounds__(1024) correct_rows_##suffix(                                        \
        float* __restrict__ correct, const T* __restrict__ logits, const int* __restrict__ targets, uint32_t classes,\
        const float* __restrict__ weights, uint32_t first, uint32_t rows_of_sample) {                                \
        correct_rows<T>(correct, logits, targets, classes, Weights{weights, first, rows_of_sample});                 \
    }                                                                                                                \
    REGISTER(correct_rows_##suffix)

CROSS_ENTROPY(float, f32)
CROSS_ENTROPY(bf16, bf16)
CROSS_ENTROPY(f16, f16)

// loss[0] (+)= weight * (sum of the losses of the rows) / all_rows. One block.
extern "C" __global__ void __launch_bounds__(1024)
    cross_entropy_mean(float* loss, const float* losses, uint32_t rows, uint32_t all_rows, float weight,
                       uint32_t accumulate) {
    double sum = 0.0;
#pragma unroll 8
    for (uint32_t row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        const float total = static_cast<float>(sum * weight / all_rows);
        loss[0] = accumulate ? loss[0] + total : total;
    }
}
REGISTER(cross_entropy_mean)
