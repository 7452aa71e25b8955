// `mma.sync` and `ldmatrix`, with the fragment layouts of the PTX ISA: lane = 4 * group + member.
#pragma once

#include "../arithmetic.h"
#include "sixteen_bit.h"
#include "warp.h"

namespace emulator {

struct MmaOperands {
    float* d;
    const uint32_t *a, *b;
};

inline float bfloat_from_bits(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

inline void require_whole_warp(unsigned arrived, const char* instruction) {
    if (arrived != ~0u) {
        current().in->fail(std::string(instruction) + " needs all 32 lanes");
    }
}

// d[16, 8] += a[16, K] b[K, 8], rounded as tensor cores do.
template <int K>
void multiply_fragments_truncated(void** operands, const float (&a)[16][K], const float (&b)[K][8]) {
    for (int lane = 0; lane < 32; lane++) {
        float* d = static_cast<MmaOperands*>(operands[lane])->d;
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
            for (int first = 0; first < K; first += PRODUCTS_AT_ONCE) {
                float products[PRODUCTS_AT_ONCE];
                for (int k = 0; k < PRODUCTS_AT_ONCE; k++) products[k] = a[row][first + k] * b[first + k][column];
                d[i] = add_truncated(d[i], products, PRODUCTS_AT_ONCE);
            }
        }
    }
}

// d[16, 8] += a[16, K] b[K, 8] once the fragments are spread out: each lane keeps rows `group` and `group +
// 8`, columns `2 * member` and the next, of d.
template <int K>
void multiply_fragments(void** operands, const float (&a)[16][K], const float (&b)[K][8]) {
    if (Arithmetic::get().truncates) return multiply_fragments_truncated<K>(operands, a, b);
    float product[16][8] = {};
    for (int row = 0; row < 16; row++) {
        for (int k = 0; k < K; k++) {
            for (int column = 0; column < 8; column++) {
                product[row][column] += a[row][k] * b[k][column];
            }
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        float* d = static_cast<MmaOperands*>(operands[lane])->d;
        const int group = lane / 4, member = lane % 4;
        for (int i = 0; i < 4; i++) {
            d[i] += product[group + i / 2 * 8][2 * member + i % 2];
        }
    }
}

// m16n8k16. Registers of a hold two neighbouring columns of rows group, group + 8, and the same 8 columns
// further on; registers of b two neighbouring rows of column `group`, and the same 8 rows further down.
template <float (*value)(uint16_t)>
void mma_16816(float* d, const uint32_t* a, const uint32_t* b, Site site) {
    MmaOperands own{d, a, b};
    current().in->collective(~0u, site, &own, [](void** operands, unsigned arrived) {
        require_whole_warp(arrived, "mma.sync");
        float left[16][16], right[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const auto* lane_operands = static_cast<MmaOperands*>(operands[lane]);
            const int group = lane / 4, member = lane % 4;
            for (int i = 0; i < 8; i++) {
                const uint16_t bits = static_cast<uint16_t>(lane_operands->a[i / 2] >> (16 * (i % 2)));
                left[group + i / 2 % 2 * 8][2 * member + i % 2 + i / 4 * 8] = value(bits);
            }
            for (int i = 0; i < 4; i++) {
                const uint16_t bits = static_cast<uint16_t>(lane_operands->b[i / 2] >> (16 * (i % 2)));
                right[2 * member + i % 2 + i / 2 * 8][group] = value(bits);
            }
        }
        multiply_fragments<16>(operands, left, right);
    });
}

struct LdmatrixOperands {
    uint32_t* registers;
    const void* row;
};

// Lane i gives the address of row `i % 8` of matrix `i / 8`. It receives of each matrix the values at row
// `i / 4`, columns `2 * (i % 4)` and the next; transposed, at column `i / 4`, rows `2 * (i % 4)` and the
// next.
template <int matrices, bool transposed>
void ldmatrix(uint32_t* registers, const void* row, Site site) {
    Block& block = *current().in;
    if (block.lane() < 8 * matrices) {
        block.require_shared(row, "ldmatrix", site);
    }
    LdmatrixOperands own{registers, row};
    block.collective(~0u, site, &own, [](void** operands, unsigned arrived) {
        require_whole_warp(arrived, "ldmatrix");
        for (int matrix = 0; matrix < matrices; matrix++) {
            uint16_t values[8][8];
            for (int row = 0; row < 8; row++) {
                memcpy(values[row], static_cast<LdmatrixOperands*>(operands[8 * matrix + row])->row, 16);
            }
            for (int lane = 0; lane < 32; lane++) {
                const int major = lane / 4, minor = 2 * (lane % 4);
                const uint16_t low = transposed ? values[minor][major] : values[major][minor];
                const uint16_t high = transposed ? values[minor + 1][major] : values[major][minor + 1];
                static_cast<LdmatrixOperands*>(operands[lane])->registers[matrix] =
                    low | static_cast<uint32_t>(high) << 16;
            }
        }
    });
}

}  // namespace emulator

inline void mma_bf16_16816(float* d, const uint32_t* a, const uint32_t* b, EMULATED_SITE) {
    emulator::mma_16816<emulator::bfloat_from_bits>(d, a, b, site);
}

inline void mma_f16_16816(float* d, const uint32_t* a, const uint32_t* b, EMULATED_SITE) {
    emulator::mma_16816<half_value>(d, a, b, site);
}

// m16n8k8 on the upper 19 bits of f32.
inline void mma_tf32_1688(float* d, const uint32_t* a, const uint32_t* b, EMULATED_SITE) {
    using namespace emulator;
    MmaOperands own{d, a, b};
    current().in->collective(~0u, site, &own, [](void** operands, unsigned arrived) {
        require_whole_warp(arrived, "mma.sync");
        float left[16][8], right[8][8];
        for (int lane = 0; lane < 32; lane++) {
            const auto* lane_operands = static_cast<MmaOperands*>(operands[lane]);
            const int group = lane / 4, member = lane % 4;
            for (int i = 0; i < 4; i++) {
                left[group + i % 2 * 8][member + i / 2 * 4] =
                    __uint_as_float(lane_operands->a[i] & 0xffffe000);
            }
            for (int i = 0; i < 2; i++) {
                right[member + i * 4][group] = __uint_as_float(lane_operands->b[i] & 0xffffe000);
            }
        }
        multiply_fragments<8>(operands, left, right);
    });
}

inline void ldmatrix_x4(uint32_t* r, const void* row, EMULATED_SITE) {
    emulator::ldmatrix<4, false>(r, row, site);
}
inline void ldmatrix_x2(uint32_t* r, const void* row, EMULATED_SITE) {
    emulator::ldmatrix<2, false>(r, row, site);
}
inline void ldmatrix_x1(uint32_t* r, const void* row, EMULATED_SITE) {
    emulator::ldmatrix<1, false>(r, row, site);
}
inline void ldmatrix_x4_trans(uint32_t* r, const void* row, EMULATED_SITE) {
    emulator::ldmatrix<4, true>(r, row, site);
}
inline void ldmatrix_x2_trans(uint32_t* r, const void* row, EMULATED_SITE) {
    emulator::ldmatrix<2, true>(r, row, site);
}
inline void ldmatrix_x1_trans(uint32_t* r, const void* row, EMULATED_SITE) {
    emulator::ldmatrix<1, true>(r, row, site);
}
