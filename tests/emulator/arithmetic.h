// Rounding of sums of products, which CUDA leaves open: each addition rounded to nearest, in order, or like tensor
// cores.
#pragma once

#include <cstddef>
#include <cstdint>

// Number of products that tensor cores add to a sum at once: 8 on compute capability 8, more on later ones.
constexpr int PRODUCTS_AT_ONCE = 8;

// Number of sums computed in parallel.
constexpr int LANES = 8;

// sums[i] + products[0][i] + ... for at most PRODUCTS_AT_ONCE products, as tensor cores add them: every addend is
// truncated at half a ULP of the largest, and the exact sum of the truncated addends is truncated to f32.
void add_truncated(float* sums, const float (*products)[LANES], int count);

// A lane's registers of `mma.sync`: the fragments of d[16, 8] += a[16, k] b[k, 8].
struct MmaOperands {
    float d[4];
    uint32_t a[4], b[2];
};

// Operands of all 32 lanes: m16n8k16 of 16-bit numbers, and m16n8k8 of the upper 19 bits of f32 numbers (tf32).
void multiply_bf16_fragments(MmaOperands* const* lanes, bool truncates);
void multiply_f16_fragments(MmaOperands* const* lanes, bool truncates);
void multiply_tf32_fragments(MmaOperands* const* lanes, bool truncates);

// sums[column][row] = sum over k of left[k, row] right[column, k], for all rows of a tile and some of its columns.
constexpr size_t TILE_ROWS = 16, TILE_COLUMNS = 4;
void multiply_tile(const float* left, size_t left_line, const float* right, size_t right_line, size_t inner,
                   size_t columns, bool truncates, float (&sums)[TILE_COLUMNS][TILE_ROWS]);
