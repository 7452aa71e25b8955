// Always compiled without sanitizers, for speed: most of the time of matmuls is spent here, and the code accesses
// nothing but the caller's tiles.
#include "arithmetic.h"

#include <cfloat>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

// LANES sums in parallel (SIMD).
using Floats = float __attribute__((vector_size(4 * LANES)));
using Words = int32_t __attribute__((vector_size(4 * LANES)));

Floats load(const float* values) {
    Floats loaded;
    memcpy(&loaded, values, sizeof loaded);
    return loaded;
}

void store(float* values, Floats stored) { memcpy(values, &stored, sizeof stored); }

// Local functions instead of those of the headers: of equally named inline functions, the linker keeps one, which may
// be a sanitized one.
float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float value_of_bfloat(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

float value_of_half(uint16_t bits) {
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13, sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    if (magnitude >= 0x7c00 << 13) return float_of(sign | 0x7f800000 | magnitude);
    // Also correct for subnormal numbers.
    const float value = float_of(magnitude) * 0x1p112f;
    return sign != 0 ? -value : value;
}

float value_of_tf32(uint32_t bits) { return float_of(bits & 0xffffe000); }

Floats add_truncated(Floats sum, const Floats (&products)[PRODUCTS_AT_ONCE]) {
    constexpr int ADDENDS = 1 + PRODUCTS_AT_ONCE;
    Words addends[ADDENDS];
    memcpy(&addends[0], &sum, sizeof sum);
    memcpy(&addends[1], products, sizeof products);

    // Stored (biased) exponents, at least 1: subnormal numbers have the exponent of the smallest normal number.
    Words exponents[ADDENDS], largest = {}, all = ~Words{};
    for (int i = 0; i < ADDENDS; i++) {
        const Words exponent = addends[i] >> 23 & 0xff;
        exponents[i] = exponent < 1 ? Words{} + 1 : exponent;
        largest = exponent > largest ? exponent : largest;
        all &= addends[i];
    }
    largest = largest < 1 ? Words{} + 1 : largest;

    // In units of half a ULP of the largest addend: at most 2^25 each, 9 addends.
    Words total = {};
    for (int i = 0; i < ADDENDS; i++) {
        const Words leading = (addends[i] >> 23 & 0xff) != 0 ? Words{} + 0x800000 : Words{};
        const Words distance = largest - exponents[i];
        const Words magnitude = ((addends[i] & 0x7fffff) | leading) << 1 >> (distance > 31 ? Words{} + 31 : distance);
        const Words sign = addends[i] >> 31;
        total += (magnitude ^ sign) - sign;
    }

    const Words sign = total >> 31, magnitude = (total ^ sign) - sign;
    // Conversion rounds to nearest; where the result is larger, step back by one ULP (truncation).
    Floats cut = __builtin_convertvector(magnitude, Floats);
    cut = (Floats)((Words)cut + (__builtin_convertvector(cut, Words) > magnitude));
    // Exact: subnormal results are multiples of the smallest subnormal number.
    cut = cut * 0x1p-24f * (Floats)(largest << 23);
    cut = cut > FLT_MAX ? Floats{} + FLT_MAX : cut;
    // A sum of zeros is -0 only if all addends are -0.
    const Words negative = (total == 0 ? all : total) & INT32_MIN;
    Floats result = (Floats)((Words)cut | negative);

    for (int lane = 0; lane < LANES; lane++) {
        if (largest[lane] != 0xff) continue;
        float plain = sum[lane];
        for (const Floats& product : products) plain += product[lane];
        result[lane] = plain;
    }
    return result;
}

// d[16, 8] += a[16, K] b[K, 8].
template <int K>
void multiply_fragments(MmaOperands* const* lanes, const float (&a)[16][K], const float (&b)[K][LANES],
                        bool truncates) {
    float d[16][LANES];
    // Each lane holds rows `group` and `group + 8`, columns `2 * member` and `2 * member + 1` of d: lane = 4 * group +
    // member.
    const auto place = [&](int lane, int half) { return &d[lane / 4 + 8 * half][2 * (lane % 4)]; };
    for (int lane = 0; lane < 32; lane++) {
        for (int half : {0, 1}) memcpy(place(lane, half), &lanes[lane]->d[2 * half], 8);
    }
    for (int row = 0; row < 16; row++) {
        Floats sum = load(d[row]);
        if (truncates) {
            for (int first = 0; first < K; first += PRODUCTS_AT_ONCE) {
                Floats products[PRODUCTS_AT_ONCE];
                for (int k = 0; k < PRODUCTS_AT_ONCE; k++) products[k] = a[row][first + k] * load(b[first + k]);
                sum = add_truncated(sum, products);
            }
        } else {
            Floats product = {};
            for (int k = 0; k < K; k++) product += a[row][k] * load(b[k]);
            sum += product;
        }
        store(d[row], sum);
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int half : {0, 1}) memcpy(&lanes[lane]->d[2 * half], place(lane, half), 8);
    }
}

// The registers of a hold two adjacent columns of rows group and group + 8, then the same 8 columns further on; the
// registers of b hold two adjacent rows of column `group`, then the same 8 rows further down.
template <float (*value)(uint16_t)>
void multiply_16_bit_fragments(MmaOperands* const* lanes, bool truncates) {
    float a[16][16], b[16][LANES];
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperands& operands = *lanes[lane];
        const int group = lane / 4, member = lane % 4;
        for (int i = 0; i < 8; i++) {
            const auto bits = static_cast<uint16_t>(operands.a[i / 2] >> 16 * (i % 2));
            a[group + i / 2 % 2 * 8][2 * member + i % 2 + i / 4 * 8] = value(bits);
        }
        for (int i = 0; i < 4; i++) {
            const auto bits = static_cast<uint16_t>(operands.b[i / 2] >> 16 * (i % 2));
            b[2 * member + i % 2 + i / 2 * 8][group] = value(bits);
        }
    }
    multiply_fragments<16>(lanes, a, b, truncates);
}

}  // namespace

void add_truncated(float* sums, const float (*products)[LANES], int count) {
    Floats factors[PRODUCTS_AT_ONCE];
    // Missing products are -0, which changes no sum, not even the sign of a zero.
    for (int i = 0; i < PRODUCTS_AT_ONCE; i++) factors[i] = i < count ? load(products[i]) : -Floats{};
    store(sums, add_truncated(load(sums), factors));
}

void multiply_bf16_fragments(MmaOperands* const* lanes, bool truncates) {
    multiply_16_bit_fragments<value_of_bfloat>(lanes, truncates);
}

void multiply_f16_fragments(MmaOperands* const* lanes, bool truncates) {
    multiply_16_bit_fragments<value_of_half>(lanes, truncates);
}

void multiply_tf32_fragments(MmaOperands* const* lanes, bool truncates) {
    float a[16][8], b[8][LANES];
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperands& operands = *lanes[lane];
        const int group = lane / 4, member = lane % 4;
        for (int i = 0; i < 4; i++) a[group + i % 2 * 8][member + i / 2 * 4] = value_of_tf32(operands.a[i]);
        for (int i = 0; i < 2; i++) b[member + i * 4][group] = value_of_tf32(operands.b[i]);
    }
    multiply_fragments<8>(lanes, a, b, truncates);
}

namespace {

// Computes COLUMNS columns at once; their sums stay in registers.
template <int COLUMNS, bool TRUNCATES>
void multiply_columns(const float* left, size_t left_line, const float* right, size_t right_line, size_t inner,
                      float (*sums)[TILE_ROWS]) {
    constexpr int PARTS = TILE_ROWS / LANES;
    Floats sum[COLUMNS][PARTS] = {};
    if constexpr (TRUNCATES) {
        static_assert(COLUMNS == 1);
        for (size_t first = 0; first < inner; first += PRODUCTS_AT_ONCE) {
            // Missing products are -0, which changes no sum, not even the sign of a zero.
            Floats products[PARTS][PRODUCTS_AT_ONCE];
            for (size_t k = 0; k < PRODUCTS_AT_ONCE; k++) {
                for (int part = 0; part < PARTS; part++) {
                    products[part][k] = first + k < inner
                                            ? load(left + (first + k) * left_line + part * LANES) * right[first + k]
                                            : -Floats{};
                }
            }
            for (int part = 0; part < PARTS; part++) sum[0][part] = add_truncated(sum[0][part], products[part]);
        }
    } else {
        for (size_t k = 0; k < inner; k++) {
            for (int part = 0; part < PARTS; part++) {
                const Floats row = load(left + k * left_line + part * LANES);
                for (int column = 0; column < COLUMNS; column++) sum[column][part] += row * right[column * right_line + k];
            }
        }
    }
    for (int column = 0; column < COLUMNS; column++) {
        for (int part = 0; part < PARTS; part++) store(&sums[column][part * LANES], sum[column][part]);
    }
}

}  // namespace

void multiply_tile(const float* left, size_t left_line, const float* right, size_t right_line, size_t inner,
                   size_t columns, bool truncates, float (&sums)[TILE_COLUMNS][TILE_ROWS]) {
    if (!truncates && columns == TILE_COLUMNS) {
        return multiply_columns<TILE_COLUMNS, false>(left, left_line, right, right_line, inner, sums);
    }
    const auto multiply = truncates ? multiply_columns<1, true> : multiply_columns<1, false>;
    for (size_t column = 0; column < columns; column++) {
        multiply(left, left_line, right + column * right_line, right_line, inner, &sums[column]);
    }
}
