// The optimizers that go element by element, one a line: the name of its kernels and its struct, by how many moments it keeps
// of each parameter.
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

// As many as there may be arrays of.
template <class Rule>
constexpr int MOMENTS_OF = Rule::MOMENTS > 0 ? Rule::MOMENTS : 1;

template <class Rule>
__device__ constexpr bool has_unsigned() {
    for (int moment = 0; moment < Rule::MOMENTS; ++moment) {
        if (!Rule::is_signed(moment)) return true;
    }
    return false;
}
