// `cp.async`: on a GPU the bytes arrive at any time between the instruction and the wait. With forward thread order
// they arrive at the wait, which exposes a missing wait; with backward order at once, which exposes overwriting data
// that other threads still read; with random order either.
#pragma once

#include "block.h"

inline void cp_async16(void* shared, const void* global, emulator::Site site = emulator::Site::here()) {
    emulator::Block& block = *emulator::current().in;
    block.require_shared(shared, "cp.async", site);
    if (reinterpret_cast<uintptr_t>(global) % 16 != 0) {
        block.fail(site.text() + ": cp.async from an address that is not a multiple of 16");
    }
    const bool at_once =
        block.order().backward() || (block.order().by_chance() && block.chance().below(2) == 0);
    if (at_once) {
        memcpy(shared, global, 16);
    } else {
        emulator::Thread& thread = block.thread();
        thread.copies.push_back({shared, global, thread.copy_group});
        thread.pending++;
    }
}

inline void cp_commit() { emulator::current().in->thread().copy_group++; }

// Completes all committed groups except the last `pending`.
inline void cp_wait(int pending) {
    emulator::Thread& thread = emulator::current().in->thread();
    const int done = thread.copy_group - pending;
    size_t kept = 0;
    for (const emulator::PendingCopy& copy : thread.copies) {
        if (copy.group < done) {
            memcpy(copy.shared, copy.global, 16);
        } else {
            thread.copies[kept++] = copy;
        }
    }
    thread.copies.resize(kept);
    thread.pending = kept;
}
