// Many tensors in one launch: a table, passed by value, assigns the blocks of the grid to the tensors.
#pragma once
#include "compat.cuh"

// Capacity of one table. Kernel parameters are limited to 4 KiB.
constexpr int TABLE_ENTRIES = 64;

// Every member of an entry has 8 bytes, and the first is `first_block`: the layout that the launches write.
template <class Entry>
struct Table {
    uint64_t count;
    Entry entries[TABLE_ENTRIES];
};

// The entry that this block works on: the last one whose `first_block` is at or before the block.
template <class Entry>
__device__ __forceinline__ const Entry& entry_of_block(const Table<Entry>& table) {
    int low = 0;
    int high = static_cast<int>(table.count);
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (table.entries[middle].first_block <= blockIdx.x) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return table.entries[low];
}
