// What happens to whole buckets of gradients and parameters at the end of a step. Padding between the tensors of a
// bucket is neither read nor written.
#include "reductions.cuh"
#include "tables.cuh"
#include "vectors.cuh"

constexpr int BLOCK = 256;

// One tensor of a bucket. Its blocks take NORM_ELEMENTS each, and each makes one partial sum.
struct NormEntry {
    uint64_t first_block;
    uint64_t gradients;
    uint64_t len;
};

constexpr uint64_t NORM_ELEMENTS = 65536;
constexpr int NORM_BLOCK = 512;

__device__ __forceinline__ double square(float value) {
    const double wide = value;
    return wide * wide;
}

// partials[block] = the sum of the squares of the block's elements.
extern "C" __global__ void __launch_bounds__(NORM_BLOCK)
    norm_partials(double* __restrict__ partials, const Table<NormEntry> table) {
    const NormEntry& entry = entry_of_block(table);
    const uint64_t begin = (blockIdx.x - entry.first_block) * NORM_ELEMENTS;
    const float* gradients = reinterpret_cast<const float*>(entry.gradients) + begin;
    const uint32_t count = static_cast<uint32_t>(min(NORM_ELEMENTS, entry.len - begin));
    const uint32_t whole = is_vector_aligned(gradients) ? count / 4 : 0;
    // Two chains of additions, because f64 units are slow to answer.
    double even = 0.0;
    double odd = 0.0;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < whole; i += NORM_BLOCK) {
        const float4 v = load_quad(gradients + 4 * i);
        even += square(v.x) + square(v.y);
        odd += square(v.z) + square(v.w);
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += NORM_BLOCK) even += square(gradients[i]);
    const double sum = block_sum(even + odd);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
REGISTER(norm_partials)

// norm[0] = sqrt(the sum of the partial sums), divided by scaling[0] unless `scaling` is null. One block.
extern "C" __global__ void __launch_bounds__(1024)
    norm_of_partials(float* norm, const double* __restrict__ partials, const float* __restrict__ scaling,
                     uint32_t count) {
    double sum = 0.0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        const double scale = scaling == nullptr ? 1.0 : static_cast<double>(scaling[0]);
        norm[0] = static_cast<float>(sqrt(sum) / scale);
    }
}
REGISTER(norm_of_partials)

// One tensor of a bucket. Its blocks take UPDATE_ELEMENTS each.
struct UpdateEntry {
    uint64_t first_block;
    uint64_t offset;
    uint64_t len;
    // Whether the parameters decay.
    uint64_t decay;
};

// Runs of four elements that a thread updates.
constexpr int UPDATE_QUADS = 4;
constexpr uint64_t UPDATE_ELEMENTS = 4 * UPDATE_QUADS * BLOCK;

// What is the same for all elements of all steps.
struct AdamW {
    // What remains of the moments, and what the gradient and its square add to them: f32 of numbers made in f64.
    float beta1;
    float added1;
    float beta2;
    float added2;
    float epsilon;
    float weight_decay;
    // Infinite: gradients are not clipped.
    float clip_norm;
    uint32_t padding;
};

// What is the same for all elements of one step.
struct Step {
    // What the gradient is multiplied by.
    float gradient;
    // Learning rate over the first moment's bias correction.
    float rate;
    // 1 over the root of the second moment's bias correction.
    float correction;
    // What remains of a parameter.
    float kept;
};

__device__ __forceinline__ void update(const AdamW& adamw, const Step& step, float& parameter, float gradient,
                                       float& first, float& second) {
    gradient *= step.gradient;
    first = adamw.beta1 * first + adamw.added1 * gradient;
    second = adamw.beta2 * second + adamw.added2 * gradient * gradient;
    const float denominator = sqrtf(second) * step.correction + adamw.epsilon;
    parameter = parameter * step.kept - step.rate * (first / denominator);
}

// In what follows, `norm` is null where gradients are neither clipped nor scaled, `scaling` where they are not scaled. A step
// whose scaled gradients have no finite norm is left out.
__device__ __forceinline__ bool is_left_out(const float* norm, const float* scaling) {
    return scaling != nullptr && !(norm[0] < INFINITY);
}

// What gradients are multiplied by: what clipping leaves of them, over the loss scale.
__device__ __forceinline__ float share(float clip_norm, const float* norm, const float* scaling) {
    float share = 1.0f;
    if (norm != nullptr) {
        const float ratio = clip_norm / (norm[0] + 1e-6f);
        // A norm that is not a number must show in the parameters.
        if (clip_norm < INFINITY && !(ratio > 1.0f)) share = ratio;
    }
    return scaling == nullptr ? share : share / scaling[0];
}

// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
extern "C" __global__ void __launch_bounds__(BLOCK)
    adamw(float* __restrict__ parameters, const float* __restrict__ gradients, float* __restrict__ first,
          float* __restrict__ second, const float* __restrict__ numbers, const float* __restrict__ norm,
          const float* __restrict__ scaling, const AdamW constants, const Table<UpdateEntry> table) {
    if (is_left_out(norm, scaling)) return;
    Step step;
    step.gradient = share(constants.clip_norm, norm, scaling);

    const UpdateEntry& entry = entry_of_block(table);
    step.rate = numbers[0] / numbers[1];
    step.correction = 1.0f / sqrtf(numbers[2]);
    step.kept = entry.decay ? 1.0f - numbers[0] * constants.weight_decay : 1.0f;

    const uint64_t begin = (blockIdx.x - entry.first_block) * UPDATE_ELEMENTS;
    const uint32_t count = static_cast<uint32_t>(min(UPDATE_ELEMENTS, entry.len - begin));
    parameters += entry.offset + begin;
    gradients += entry.offset + begin;
    first += entry.offset + begin;
    second += entry.offset + begin;
    const uint32_t whole = is_vector_aligned(parameters) ? count / 4 : 0;
#pragma unroll
    for (int q = 0; q < UPDATE_QUADS; ++q) {
        const uint32_t quad = q * BLOCK + threadIdx.x;
        if (quad < whole) {
            float4 p = load_quad(parameters + 4 * quad);
            const float4 g = load_quad(gradients + 4 * quad);
            float4 m = load_quad(first + 4 * quad);
            float4 v = load_quad(second + 4 * quad);
            update(constants, step, p.x, g.x, m.x, v.x);
            update(constants, step, p.y, g.y, m.y, v.y);
            update(constants, step, p.z, g.z, m.z, v.z);
            update(constants, step, p.w, g.w, m.w, v.w);
            store_quad(parameters + 4 * quad, p);
            store_quad(first + 4 * quad, m);
            store_quad(second + 4 * quad, v);
        }
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        update(constants, step, parameters[i], gradients[i], first[i], second[i]);
    }
}
REGISTER(adamw)

// What is the same for all elements of all steps.
struct Sgd {
    float momentum;
    // 1 for Nesterov's, 0 for Polyak's.
    float nesterov;
    float weight_decay;
    // Infinite: gradients are not clipped.
    float clip_norm;
};

// Stochastic gradient descent; `velocity` is null without momentum.
template <bool MOMENTUM>
__device__ __forceinline__ void descend(float* __restrict__ parameters, const float* __restrict__ gradients,
                                        float* __restrict__ velocity, float rate, const float* __restrict__ norm,
                                        const float* __restrict__ scaling, const Sgd& sgd,
                                        const Table<UpdateEntry>& table) {
    if (is_left_out(norm, scaling)) return;
    const float gradient_share = share(sgd.clip_norm, norm, scaling);
    const UpdateEntry& entry = entry_of_block(table);
    const float decay = entry.decay ? sgd.weight_decay : 0.0f;
    const uint64_t begin = (blockIdx.x - entry.first_block) * UPDATE_ELEMENTS;
    const uint32_t count = static_cast<uint32_t>(min(UPDATE_ELEMENTS, entry.len - begin));
    parameters += entry.offset + begin;
    gradients += entry.offset + begin;
    if (MOMENTUM) velocity += entry.offset + begin;
    const auto update = [&](float& parameter, float gradient, float& v) {
        gradient = gradient * gradient_share + decay * parameter;
        if (MOMENTUM) {
            v = sgd.momentum * v + gradient;
            gradient = sgd.nesterov != 0.0f ? gradient + sgd.momentum * v : v;
        }
        parameter -= rate * gradient;
    };
    const uint32_t whole = is_vector_aligned(parameters) ? count / 4 : 0;
#pragma unroll
    for (int q = 0; q < UPDATE_QUADS; ++q) {
        const uint32_t quad = q * BLOCK + threadIdx.x;
        if (quad < whole) {
            float4 p = load_quad(parameters + 4 * quad);
            const float4 g = load_quad(gradients + 4 * quad);
            float4 v = MOMENTUM ? load_quad(velocity + 4 * quad) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            update(p.x, g.x, v.x);
            update(p.y, g.y, v.y);
            update(p.z, g.z, v.z);
            update(p.w, g.w, v.w);
            store_quad(parameters + 4 * quad, p);
            if (MOMENTUM) store_quad(velocity + 4 * quad, v);
        }
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        float v = MOMENTUM ? velocity[i] : 0.0f;
        update(parameters[i], gradients[i], v);
        if (MOMENTUM) velocity[i] = v;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sgd(float* __restrict__ parameters, const float* __restrict__ gradients, const float* __restrict__ numbers,
        const float* __restrict__ norm, const float* __restrict__ scaling, const Sgd constants,
        const Table<UpdateEntry> table) {
    descend<false>(parameters, gradients, nullptr, numbers[0], norm, scaling, constants, table);
}
REGISTER(sgd)

extern "C" __global__ void __launch_bounds__(BLOCK)
    sgd_momentum(float* __restrict__ parameters, const float* __restrict__ gradients, float* __restrict__ velocity,
                 const float* __restrict__ numbers, const float* __restrict__ norm,
                 const float* __restrict__ scaling, const Sgd constants, const Table<UpdateEntry> table) {
    descend<true>(parameters, gradients, velocity, numbers[0], norm, scaling, constants, table);
}
REGISTER(sgd_momentum)

// Dynamic loss scaling, one thread. `counts` holds the good steps since the scale last changed and the steps left out.
extern "C" __global__ void loss_scale(float* scale, float* counts, const float* norm, float backoff, float growth,
                                      float interval) {
    if (!(norm[0] < INFINITY)) {
        scale[0] *= backoff;
        counts[0] = 0.0f;
        counts[1] += 1.0f;
    } else if (counts[0] + 1.0f < interval) {
        counts[0] += 1.0f;
    } else {
        // A scale that is infinite would never let a step through again.
        const float grown = scale[0] * growth;
        if (grown < INFINITY) scale[0] = grown;
        counts[0] = 0.0f;
    }
}
REGISTER(loss_scale)
