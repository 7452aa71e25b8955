// Adafactor (Shazeer and Stern 2018): factored variances, products of row and column variances. Each tensor is read
// three times: for the sums of its rows and columns, for the norm of its direction, and for the update. All kernels
// take the same parameters and differ in the assignment of blocks.
#include "reductions.cuh"
#include "weights.cuh"

// Constants of all steps.
struct Adafactor {
    float epsilon;
    float scale_epsilon;
    float clip_threshold;
    float weight_decay;
};

// Maximum number of row runs per tensor; each run has its own partial sums.
constexpr uint64_t MOST_BLOCKS = 128;

// One tensor of a bucket. A vector is one row, which has no variance of its own.
struct Factored {
    uint64_t first_block;
    uint64_t offset;
    uint64_t rows;
    uint64_t columns;
    // Start of its variances: those of the rows, then those of the columns.
    uint64_t variances;
    // Start of its scratch memory: two f64 sums per row run, then one sum of each column per row run, then two numbers
    // (`whole`).
    uint64_t scratch;
    // Lower 32 bits: site of the random numbers. Bit 32: whether weight decay applies. Bit 33: whether it is a matrix.
    uint64_t terms;

    __device__ __forceinline__ uint32_t site() const { return static_cast<uint32_t>(terms); }
    __device__ __forceinline__ bool decays() const { return terms >> 32 & 1; }
    __device__ __forceinline__ bool is_matrix() const { return terms >> 33 & 1; }
    __device__ __forceinline__ uint64_t rows_per_block() const { return (rows + MOST_BLOCKS - 1) / MOST_BLOCKS; }
    __device__ __forceinline__ uint64_t blocks() const { return (rows + rows_per_block() - 1) / rows_per_block(); }
    __device__ __forceinline__ uint64_t rows_with_variances() const { return is_matrix() ? rows : 0; }

    // Range of rows of this block.
    __device__ __forceinline__ uint64_t begin() const { return (blockIdx.x - first_block) * rows_per_block(); }
    __device__ __forceinline__ uint64_t end() const { return min(rows, begin() + rows_per_block()); }

    // Sums of squares of the parameters, then of the directions, one per row run.
    __device__ __forceinline__ double* sums(float* scratches) const {
        return reinterpret_cast<double*>(scratches + scratch);
    }
    __device__ __forceinline__ float* partial_columns(float* scratches) const {
        return scratches + scratch + 4 * blocks();
    }
    // Divisor of the row variances (their mean), then the scale of the parameters.
    __device__ __forceinline__ float* whole(float* scratches) const {
        return partial_columns(scratches) + blocks() * columns;
    }
};

// Arguments that all kernels use.
struct Step {
    const Factored& tensor;
    Weights weights;
    // Factor of the gradients.
    float counted;

    __device__ __forceinline__ Step(void* parameters, const void* gradients, const float* numbers, float* master,
                                    const float* norm, const float* scaling, float clip_norm, const Formats& formats,
                                    const Table<Factored>& table)
        : tensor(entry_of_block(table)),
          weights(parameters, gradients, master, formats, tensor.offset, tensor.site(), numbers[1]),
          counted(share(clip_norm, norm, scaling)) {}

    __device__ __forceinline__ float gradient(uint64_t element) const { return weights.gradient(element) * counted; }
};

// Variance of an element, from its row's and its column's variance.
struct Variances {
    const float* rows;
    const float* columns;
    float mean;
    float least;

    __device__ __forceinline__ Variances(const Factored& tensor, const float* variances, float* scratches,
                                         const Adafactor& rule)
        : rows(tensor.is_matrix() ? variances + tensor.variances : nullptr),
          columns(variances + tensor.variances + tensor.rows_with_variances()),
          mean(tensor.whole(scratches)[0]),
          least(rule.epsilon * rule.epsilon) {}

    __device__ __forceinline__ float row(uint64_t row) const { return rows == nullptr ? 1.0f : rows[row] / mean; }

    __device__ __forceinline__ float of(float row, uint64_t column) const {
        return fmaxf(row * columns[column], least);
    }
};

constexpr int WARPS = BLOCK / 32;

#define ADAFACTOR(name)                                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
        name(void* parameters, const void* gradients, float* variances, const float* __restrict__ numbers,           \
             float* master, const float* __restrict__ norm, const float* __restrict__ scaling, float clip_norm,      \
             const Adafactor rule, const Formats formats, float* scratch, const Table<Factored> table)

#define STEP Step(parameters, gradients, numbers, master, norm, scaling, clip_norm, formats, table)

// Updates the row variances, and sums the squares of columns and of parameters: one block per row run.
ADAFACTOR(adafactor_sums) {
    if (is_left_out(norm, scaling)) return;
    const Step step = STEP;
    const Factored& tensor = step.tensor;
    const uint32_t lane = threadIdx.x % 32;
    double squares = 0.0;
    for (uint64_t row = tensor.begin() + threadIdx.x / 32; row < tensor.end(); row += WARPS) {
        float sum = 0.0f;
        float own = 0.0f;
        for (uint64_t column = lane; column < tensor.columns; column += 32) {
            const uint64_t element = row * tensor.columns + column;
            const float gradient = step.gradient(element);
            const float parameter = step.weights.parameter(element);
            sum += gradient * gradient;
            own += parameter * parameter;
        }
        squares += own;
        sum = warp_sum(sum);
        if (tensor.is_matrix() && lane == 0) {
            float& variance = variances[tensor.variances + row];
            variance += (sum / tensor.columns - variance) * numbers[2];
        }
    }
    squares = block_sum(squares);
    const uint64_t block = blockIdx.x - tensor.first_block;
    if (threadIdx.x == 0) tensor.sums(scratch)[block] = squares;
    float* sums = tensor.partial_columns(scratch) + block * tensor.columns;
    for (uint64_t column = threadIdx.x; column < tensor.columns; column += BLOCK) {
        float sum = 0.0f;
        for (uint64_t row = tensor.begin(); row < tensor.end(); ++row) {
            const float gradient = step.gradient(row * tensor.columns + column);
            sum += gradient * gradient;
        }
        sums[column] = sum;
    }
}
REGISTER(adafactor_sums)

// Updates the column variances: one thread per column.
ADAFACTOR(adafactor_columns) {
    if (is_left_out(norm, scaling)) return;
    const Factored& tensor = entry_of_block(table);
    const uint64_t column = (blockIdx.x - tensor.first_block) * BLOCK + threadIdx.x;
    if (column >= tensor.columns) return;
    const float* partial = tensor.partial_columns(scratch) + column;
    float sum = 0.0f;
    for (uint64_t block = 0; block < tensor.blocks(); ++block) sum += partial[block * tensor.columns];
    float& variance = variances[tensor.variances + tensor.rows_with_variances() + column];
    variance += (sum / tensor.rows - variance) * numbers[2];
}
REGISTER(adafactor_columns)

// Mean of the row variances and scale of the parameters: one block per tensor.
ADAFACTOR(adafactor_scales) {
    if (is_left_out(norm, scaling)) return;
    const Factored& tensor = entry_of_block(table);
    double rows = 0.0;
    for (uint64_t row = threadIdx.x; row < tensor.rows_with_variances(); row += BLOCK) {
        rows += variances[tensor.variances + row];
    }
    rows = block_sum(rows);
    const double* sums = tensor.sums(scratch);
    const double squares = block_sum(threadIdx.x < tensor.blocks() ? sums[threadIdx.x] : 0.0);
    if (threadIdx.x == 0) {
        float* whole = tensor.whole(scratch);
        whole[0] = fmaxf(static_cast<float>(rows / tensor.rows), rule.epsilon);
        const double mean = squares / (static_cast<double>(tensor.rows) * tensor.columns);
        whole[1] = fmaxf(static_cast<float>(sqrt(mean)), rule.scale_epsilon);
    }
}
REGISTER(adafactor_scales)

// Sums of squares of the directions: one block per row run.
ADAFACTOR(adafactor_directions) {
    if (is_left_out(norm, scaling)) return;
    const Step step = STEP;
    const Factored& tensor = step.tensor;
    const Variances all(tensor, variances, scratch, rule);
    double squares = 0.0;
    for (uint64_t row = tensor.begin() + threadIdx.x / 32; row < tensor.end(); row += WARPS) {
        const float of_row = all.row(row);
        float sum = 0.0f;
        for (uint64_t column = threadIdx.x % 32; column < tensor.columns; column += 32) {
            const float gradient = step.gradient(row * tensor.columns + column);
            sum += gradient * gradient / all.of(of_row, column);
        }
        squares += sum;
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0) tensor.sums(scratch)[tensor.blocks() + blockIdx.x - tensor.first_block] = squares;
}
REGISTER(adafactor_directions)

// Updates the parameters: UPDATE_ELEMENTS elements per block.
ADAFACTOR(adafactor_update) {
    const Step step = STEP;
    const Factored& tensor = step.tensor;
    const uint64_t elements = tensor.rows * tensor.columns;
    const uint64_t begin = (blockIdx.x - tensor.first_block) * UPDATE_ELEMENTS;
    const uint32_t count = static_cast<uint32_t>(min(UPDATE_ELEMENTS, elements - begin));
    if (is_left_out(norm, scaling)) return step.weights.keep(begin, count);
    const double* sums = tensor.sums(scratch) + tensor.blocks();
    const double squares = block_sum(threadIdx.x < tensor.blocks() ? sums[threadIdx.x] : 0.0);
    const float ratio = static_cast<float>(sqrt(squares / elements)) / rule.clip_threshold;
    // NaN must propagate to the parameters.
    const float divisor = ratio < 1.0f ? 1.0f : ratio;
    const float rate = tensor.whole(scratch)[1] * fminf(numbers[0], numbers[3]) / divisor;
    const float kept = tensor.decays() ? 1.0f - numbers[0] * rule.weight_decay : 1.0f;
    const Variances all(tensor, variances, scratch, rule);
    const auto updated = [&](float parameter, float gradient, float of_row, uint64_t column) {
        return parameter * kept - rate * (gradient * step.counted / sqrtf(all.of(of_row, column)));
    };
    const bool is_aligned = tensor.offset % 4 == 0 && tensor.columns % 4 == 0;
    const uint32_t whole = is_aligned ? count / 4 : 0;
    for (uint32_t quad = threadIdx.x; quad < whole; quad += BLOCK) {
        const uint64_t element = begin + 4 * quad;
        const uint64_t column = element % tensor.columns;
        const float of_row = all.row(element / tensor.columns);
        float4 p = step.weights.parameter_quad(element);
        const float4 g = step.weights.gradient_quad(element);
        p.x = updated(p.x, g.x, of_row, column);
        p.y = updated(p.y, g.y, of_row, column + 1);
        p.z = updated(p.z, g.z, of_row, column + 2);
        p.w = updated(p.w, g.w, of_row, column + 3);
        step.weights.store_quad_of(element, p);
    }
    for (uint32_t i = 4 * whole + threadIdx.x; i < count; i += BLOCK) {
        const uint64_t element = begin + i;
        const float of_row = all.row(element / tensor.columns);
        const float parameter = step.weights.parameter(element);
        const float gradient = step.weights.gradient(element);
        step.weights.store(element, updated(parameter, gradient, of_row, element % tensor.columns));
    }
}
REGISTER(adafactor_update)
