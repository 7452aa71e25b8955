// `mma.sync` and `ldmatrix`, with the fragment layouts of the PTX ISA.
#pragma once

#include "../arithmetic.h"
#include "warp.h"

namespace emulator {

inline void require_whole_warp(unsigned arrived, const char* instruction) {
    if (arrived != ~0u) {
        current().in->fail(std::string(instruction) + " needs all 32 lanes");
    }
}

// Each lane passes copies, so that sanitizers check its reads and writes of the kernel's variables.
template <void (*multiply)(MmaOperands* const*, bool)>
void mma(float* d, const uint32_t* a, const uint32_t* b, Site site) {
    MmaOperands own;
    for (int i = 0; i < 4; i++) own.d[i] = d[i];
    for (int i = 0; i < 4; i++) own.a[i] = a[i];
    for (int i = 0; i < 2; i++) own.b[i] = b[i];
    current().in->collective(~0u, site, &own, [](void** operands, unsigned arrived) {
        require_whole_warp(arrived, "mma.sync");
        multiply(reinterpret_cast<MmaOperands**>(operands), current().in->truncates());
    });
    for (int i = 0; i < 4; i++) d[i] = own.d[i];
}

struct LdmatrixOperands {
    uint32_t* registers;
    const void* row;
};

// Lane i passes the address of row `i % 8` of matrix `i / 8`. It receives from each matrix the values at row `i / 4`,
// columns `2 * (i % 4)` and `2 * (i % 4) + 1`; transposed, at column `i / 4`, rows `2 * (i % 4)` and `2 * (i % 4) + 1`.
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
    emulator::mma<multiply_bf16_fragments>(d, a, b, site);
}

inline void mma_f16_16816(float* d, const uint32_t* a, const uint32_t* b, EMULATED_SITE) {
    emulator::mma<multiply_f16_fragments>(d, a, b, site);
}

// m16n8k8 on the upper 19 bits of f32 (tf32).
inline void mma_tf32_1688(float* d, const uint32_t* a, const uint32_t* b, EMULATED_SITE) {
    emulator::mma<multiply_tf32_fragments>(d, a, b, site);
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
