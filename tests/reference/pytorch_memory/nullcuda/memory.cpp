#include "memory.h"

#include "cards.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <sys/mman.h>

// The driver aligns large ranges to this size; the caching allocator's segments are multiples of it.
constexpr size_t ALIGNMENT = 2 << 20;

static std::mutex lock;
struct Range {
    size_t bytes;
    bool has_memory;  // Otherwise memory is taken and given back apart from the addresses.
};

static std::map<uintptr_t, Range> ranges;
static size_t used;

// Addresses of all ranges, without access rights: host code that reads or writes device memory crashes instead of getting a
// wrong value.
constexpr size_t ARENA = (size_t)64 << 40;

// Addresses ascend and are used once. PyTorch before 2.15 prefers the lower of two equal free blocks.
static void *map_addresses(size_t bytes, bool has_memory) {
    static void *arena = mmap(nullptr, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    static uintptr_t next = ((uintptr_t)arena + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (arena == MAP_FAILED || next + bytes > (uintptr_t)arena + ARENA) return nullptr;
    uintptr_t range = next;
    next += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    ranges[range] = {bytes, has_memory};
    return (void *)range;
}

void *reserve_addresses(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    return map_addresses(bytes, false);
}

bool take(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (bytes > card().memory - used) return false;
    used += bytes;
    return true;
}

void give_back(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    used -= bytes;
}

void *reserve(size_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    if (bytes > card().memory - used) return nullptr;
    if (bytes == 0) bytes = 1;
    void *range = map_addresses(bytes, true);
    if (range) used += bytes;
    return range;
}

bool release(void *range) {
    std::lock_guard<std::mutex> guard(lock);
    auto found = ranges.find((uintptr_t)range);
    if (found == ranges.end()) return false;
    auto [bytes, has_memory] = found->second;
    if (has_memory) used -= bytes;
    ranges.erase(found);
    return true;
}

bool is_device_memory(const void *pointer) {
    std::lock_guard<std::mutex> guard(lock);
    auto after = ranges.upper_bound((uintptr_t)pointer);
    if (after == ranges.begin()) return false;
    auto [start, range] = *std::prev(after);
    return (uintptr_t)pointer - start < range.bytes;
}

size_t bytes_in_use() {
    std::lock_guard<std::mutex> guard(lock);
    return used;
}
