// Shuffles, votes and reductions among the lanes of a warp. Reading from an inactive lane is undefined on a GPU; here
// it gives bytes of 0xff, a NaN in every floating-point type.
#pragma once

#include "block.h"

namespace emulator {

template <class T>
struct Shuffle {
    T value;
    unsigned source;
    T result;
};

template <class T>
T shuffle(unsigned mask, T value, unsigned source, Site site) {
    Shuffle<T> own{value, source, value};
    current().in->collective(mask, site, &own, [](void** operands, unsigned arrived) {
        for (unsigned lanes = arrived; lanes != 0; lanes &= lanes - 1) {
            auto* lane = static_cast<Shuffle<T>*>(operands[__builtin_ctz(lanes)]);
            if (arrived >> lane->source & 1) {
                lane->result = static_cast<Shuffle<T>*>(operands[lane->source])->value;
            } else {
                memset(&lane->result, 0xff, sizeof(T));
            }
        }
    });
    return own.result;
}

struct Gather {
    unsigned long long values[32];
    unsigned arrived;
};

// Passes every lane's value to every lane.
inline Gather gather(unsigned mask, unsigned long long value, Site site) {
    struct Operand {
        unsigned long long value;
        Gather* all;
    };
    Gather all;
    Operand own{value, &all};
    current().in->collective(mask, site, &own, [](void** operands, unsigned arrived) {
        for (unsigned lanes = arrived; lanes != 0; lanes &= lanes - 1) {
            Gather& all = *static_cast<Operand*>(operands[__builtin_ctz(lanes)])->all;
            all.arrived = arrived;
            for (unsigned others = arrived; others != 0; others &= others - 1) {
                const int other = __builtin_ctz(others);
                all.values[other] = static_cast<Operand*>(operands[other])->value;
            }
        }
    });
    return all;
}

struct Vote {
    unsigned predicate, result;
};

inline unsigned vote(unsigned mask, bool predicate, Site site) {
    Vote own{predicate, 0};
    current().in->collective(mask, site, &own, [](void** operands, unsigned arrived) {
        unsigned ballot = 0;
        for (unsigned lanes = arrived; lanes != 0; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            ballot |= static_cast<Vote*>(operands[lane])->predicate << lane;
        }
        for (unsigned lanes = arrived; lanes != 0; lanes &= lanes - 1) {
            static_cast<Vote*>(operands[__builtin_ctz(lanes)])->result = ballot;
        }
    });
    return own.result;
}

// Folds the gathered values in lane order.
template <class T, class F>
T reduce(unsigned mask, T value, F combine, Site site) {
    const Gather all = gather(mask, static_cast<unsigned long long>(value), site);
    unsigned lanes = all.arrived;
    T result = static_cast<T>(all.values[__builtin_ctz(lanes)]);
    for (lanes &= lanes - 1; lanes != 0; lanes &= lanes - 1) {
        result = combine(result, static_cast<T>(all.values[__builtin_ctz(lanes)]));
    }
    return result;
}

}  // namespace emulator

#define EMULATED_SITE emulator::Site site = emulator::Site::here()

inline void __syncwarp(unsigned mask = ~0u, EMULATED_SITE) { emulator::vote(mask, false, site); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATED_SITE) {
    const unsigned lane = emulator::current().in->lane();
    return emulator::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), site);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, EMULATED_SITE) {
    const unsigned lane = emulator::current().in->lane(), source = lane ^ flip;
    const bool beyond = (source & ~(width - 1)) > (lane & ~(width - 1));
    return emulator::shuffle(mask, value, beyond ? lane : source, site);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_SITE) {
    const unsigned lane = emulator::current().in->lane();
    const bool beyond = (lane & (width - 1)) + delta >= static_cast<unsigned>(width);
    return emulator::shuffle(mask, value, beyond ? lane : lane + delta, site);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATED_SITE) {
    const unsigned lane = emulator::current().in->lane();
    const bool beyond = (lane & (width - 1)) < delta;
    return emulator::shuffle(mask, value, beyond ? lane : lane - delta, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATED_SITE) {
    return emulator::vote(mask, predicate != 0, site);
}

inline int __any_sync(unsigned mask, int predicate, EMULATED_SITE) {
    return emulator::vote(mask, predicate != 0, site) != 0;
}

inline int __all_sync(unsigned mask, int predicate, EMULATED_SITE) {
    return emulator::vote(mask, predicate == 0, site) == 0;
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value, EMULATED_SITE) {
    unsigned long long bits = 0;
    memcpy(&bits, &value, sizeof value);
    const emulator::Gather all = emulator::gather(mask, bits, site);
    unsigned equal = 0;
    for (unsigned lanes = all.arrived; lanes != 0; lanes &= lanes - 1) {
        const int lane = __builtin_ctz(lanes);
        equal |= static_cast<unsigned>(all.values[lane] == bits) << lane;
    }
    return equal;
}

// Reductions of 32-bit integers, signed or unsigned, as on a GPU.
template <class T>
T __reduce_add_sync(unsigned mask, T value, EMULATED_SITE) {
    return emulator::reduce(mask, value, [](T x, T y) { return static_cast<T>(x + y); }, site);
}
template <class T>
T __reduce_min_sync(unsigned mask, T value, EMULATED_SITE) {
    return emulator::reduce(mask, value, [](T x, T y) { return y < x ? y : x; }, site);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value, EMULATED_SITE) {
    return emulator::reduce(mask, value, [](T x, T y) { return x < y ? y : x; }, site);
}
