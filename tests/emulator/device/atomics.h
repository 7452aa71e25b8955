// Atomic operations on int, unsigned, unsigned long long and float, and fences: blocks run on several OS threads.
#pragma once

#include "block.h"

namespace emulator {

// Excludes a parameter from template argument deduction, so that `atomicAdd(&count, 1)` works for any type of count.
template <class T>
struct Same {
    using Type = T;
};

template <class T, class F>
T update_atomically(T* target, F change) {
    T before, after;
    __atomic_load(target, &before, __ATOMIC_RELAXED);
    do {
        after = change(before);
    } while (!__atomic_compare_exchange(target, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

}  // namespace emulator

#define EMULATED_ATOMIC(name, expression)                                                              \
    template <class T>                                                                                 \
    T name(T* target, typename emulator::Same<T>::Type operand) {                                      \
        return emulator::update_atomically(target, [=](T old) { return static_cast<T>(expression); }); \
    }

EMULATED_ATOMIC(atomicAdd, old + operand)
EMULATED_ATOMIC(atomicSub, old - operand)
EMULATED_ATOMIC(atomicMin, operand < old ? operand : old)
EMULATED_ATOMIC(atomicMax, old < operand ? operand : old)
EMULATED_ATOMIC(atomicAnd, old& operand)
EMULATED_ATOMIC(atomicOr, old | operand)
EMULATED_ATOMIC(atomicXor, old ^ operand)
EMULATED_ATOMIC(atomicExch, ((void)old, operand))
#undef EMULATED_ATOMIC

template <class T>
T atomicCAS(T* target, typename emulator::Same<T>::Type expected, typename emulator::Same<T>::Type desired) {
    return emulator::update_atomically(target, [=](T old) { return old == expected ? desired : old; });
}

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
