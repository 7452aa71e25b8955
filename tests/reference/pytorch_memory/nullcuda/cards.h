// The cards that nullcuda stands in for: the figures that PyTorch reads before it sizes scratch memory or chooses a kernel.
#pragma once

#include <cstddef>

struct Card {
    const char *key;  // the value of NULLCUDA_DEVICE
    int major, minor;  // compute capability
    int multiprocessors;
    size_t memory;  // bytes that the driver reports
    // Of a multiprocessor:
    int shared_memory, threads, blocks;
    int l2_cache;

    // Shared memory of a block that the driver keeps for itself.
    int reserved_shared_memory() const { return major >= 8 ? 1024 : 0; }
};

// The card that NULLCUDA_DEVICE names, with the memory that NULLCUDA_MEMORY gives in bytes. Ends the process if there is
// no such card.
const Card &card();
