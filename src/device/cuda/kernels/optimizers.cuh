// The elementwise optimizers, one a line: the name of the kernels and the struct, under the number of moments per
// parameter.
#pragma once
#include "adam.cuh"
#include "lion.cuh"
#include "muon.cuh"
#include "sgd.cuh"

#define OPTIMIZERS(NONE, ONE, TWO)   \
    TWO(adam, Adam)                  \
    ONE(lion, Lion)                  \
    NONE(muon, Muon)                 \
    ONE(muon_momentum, MuonMomentum) \
    NONE(sgd, Sgd)                   \
    ONE(sgd_momentum, SgdMomentum)

// At least 1, because arrays cannot be empty.
template <class Rule>
constexpr int MOMENTS_OF = Rule::MOMENTS > 0 ? Rule::MOMENTS : 1;

template <class Rule>
__device__ constexpr bool has_unsigned() {
    for (int moment = 0; moment < Rule::MOMENTS; ++moment) {
        if (!Rule::is_signed(moment)) return true;
    }
    return false;
}
