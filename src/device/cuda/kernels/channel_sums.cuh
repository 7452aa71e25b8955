// Statistics and sums of each channel over rows [rows, C], in two stages: partial results of runs of rows, whose number
// does not depend on the card. A lane has a channel; the warps of a block share the rows of a partial result.
#pragma once
#include "vectors.cuh"

constexpr uint32_t WARPS = 8;
constexpr uint32_t BLOCK = 32 * WARPS;
// Rows that a thread loads at a time.
constexpr uint32_t ROWS = 8;

// Count, mean and sum of squared differences from the mean.
struct Moments {
    float count;
    float mean;
    float squares;
};

// Merges the moments of two sets (Chan et al. 1979).
__device__ __forceinline__ Moments merged(const Moments& a, const Moments& b) {
    if (b.count == 0.0f) return a;
    const float count = a.count + b.count;
    const float difference = b.mean - a.mean;
    return Moments{count, a.mean + difference * (b.count / count),
                   a.squares + b.squares + difference * difference * (a.count * b.count / count)};
}

// The number of rows of a thread among the next `ROWS`.
__device__ __forceinline__ uint32_t rows_ahead(uint32_t row, uint32_t end) {
    return min(ROWS, (end - row + WARPS - 1) / WARPS);
}

// partials[p, 0, :] and [p, 1, :] = mean and sum of squared differences of `rows_per_partial` rows, from row
// p * rows_per_partial on. Grid: (partial results, blocks of 32 channels). Differences from the first of these rows are
// small even if the mean is large.
template <class T>
__device__ __forceinline__ void channel_moments(double* partials, const T* x, uint32_t rows, uint32_t channels,
                                                uint32_t rows_per_partial) {
    __shared__ Moments shared[WARPS][32];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t channel = blockIdx.y * 32 + lane;
    const uint32_t begin = blockIdx.x * rows_per_partial;
    const uint32_t end = min(rows, begin + rows_per_partial);
    float first = 0.0f;
    Moments moments = {0.0f, 0.0f, 0.0f};
    if (channel < channels) {
        first = to_float(x[static_cast<uint64_t>(begin) * channels + channel]);
        for (uint32_t row = begin + warp; row < end; row += ROWS * WARPS) {
            const uint32_t ahead = rows_ahead(row, end);
            float values[ROWS];
            float sum = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < ROWS; ++i) {
                const uint64_t start = static_cast<uint64_t>(row + i * WARPS) * channels;
                values[i] = i < ahead ? to_float(x[start + channel]) - first : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < ROWS; ++i) sum += values[i];
            Moments next = {static_cast<float>(ahead), sum / ahead, 0.0f};
#pragma unroll
            for (uint32_t i = 0; i < ROWS; ++i) {
                const float difference = i < ahead ? values[i] - next.mean : 0.0f;
                next.squares += difference * difference;
            }
            moments = merged(moments, next);
        }
    }
    shared[warp][lane] = moments;
    __syncthreads();
    if (warp == 0 && channel < channels) {
        for (uint32_t other = 1; other < WARPS; ++other) moments = merged(moments, shared[other][lane]);
        double* sink = partials + static_cast<uint64_t>(blockIdx.x) * 2 * channels + channel;
        sink[0] = static_cast<double>(first) + moments.mean;
        sink[channels] = moments.squares;
    }
}

// Where the statistics of an element are: one of each channel, or of each sample's groups of channels.
struct ByChannel {
    __device__ __forceinline__ uint64_t operator()(uint32_t, uint32_t channel) const { return channel; }
};

struct ByGroup {
    uint32_t pixels;
    uint32_t groups;
    uint32_t group_channels;

    __device__ __forceinline__ uint64_t operator()(uint32_t row, uint32_t channel) const {
        return static_cast<uint64_t>(row / pixels) * groups + channel / group_channels;
    }
};

// partials[p, 0, :] and [p, 1, :] = the sums of dy times normalized x, and of dy: dweight and dbias. Grid as above.
template <class T, class Place>
__device__ __forceinline__ void gradient_sums(float* partials, const T* dy, const T* x, const float* mean,
                                              const float* rstd, uint32_t rows, uint32_t channels,
                                              uint32_t rows_per_partial, Place place) {
    __shared__ float2 shared[WARPS][32];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t channel = blockIdx.y * 32 + lane;
    const uint32_t begin = blockIdx.x * rows_per_partial;
    const uint32_t end = min(rows, begin + rows_per_partial);
    float2 sums = make_float2(0.0f, 0.0f);
    if (channel < channels) {
        for (uint32_t row = begin + warp; row < end; row += ROWS * WARPS) {
            const uint32_t ahead = rows_ahead(row, end);
            // Sums of a few rows first: fewer rounding errors in sums of many.
            float2 next = make_float2(0.0f, 0.0f);
#pragma unroll
            for (uint32_t i = 0; i < ROWS; ++i) {
                if (i < ahead) {
                    const uint64_t element = static_cast<uint64_t>(row + i * WARPS) * channels + channel;
                    const uint64_t at = place(row + i * WARPS, channel);
                    const float slope = to_float(dy[element]);
                    next.x += slope * ((to_float(x[element]) - mean[at]) * rstd[at]);
                    next.y += slope;
                }
            }
            sums.x += next.x;
            sums.y += next.y;
        }
    }
    shared[warp][lane] = sums;
    __syncthreads();
    if (warp == 0 && channel < channels) {
        for (uint32_t other = 1; other < WARPS; ++other) {
            sums.x += shared[other][lane].x;
            sums.y += shared[other][lane].y;
        }
        float* sink = partials + static_cast<uint64_t>(blockIdx.x) * 2 * channels + channel;
        sink[0] = sums.x;
        sink[channels] = sums.y;
    }
}
