// Many tensors in one launch: a table, passed by value, says which blocks of the grid work on which of them.
#pragma once
#include "compat.cuh"

// As many as the launches put into one table: what a launch passes by value is limited to 4 KiB.
constexpr int TABLE_ENTRIES = 64;

// Members of entries are of 8 bytes, the first is `first_block`, because that is how the launches write them.
template <class Entry>
struct Table {
    uint64_t count;
    Entry entries[TABLE_ENTRIES];
};

// The entry that this block works on: the last whose `first_block` is not after it.
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
