// Virtual memory management: reserved address ranges, and memory mapped to them.
#include <sys/mman.h>

#include <cstring>

#include "call.h"
#include "memory.h"
#include "streams.h"

namespace {

// Allocation granularity: memory is created and mapped in multiples of it, as drivers report for GPUs.
constexpr size_t GRANULE = size_t{2} << 20;

bool is_whole(size_t bytes) { return bytes > 0 && bytes % GRANULE == 0; }

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Backs addresses with fresh memory, or makes them inaccessible (`protection`).
bool remap(CUdeviceptr address, size_t bytes, int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(pointer(address), bytes, protection, flags, -1, 0) != MAP_FAILED;
}

// Memory counts as used until it is neither held nor mapped.
void forget_if_unused(Context& context, unsigned long long handle) {
    auto found = context.memories.find(handle);
    if (found->second.held || found->second.mapped) return;
    context.direct -= found->second.bytes;
    context.memories.erase(found);
}

bool is_reserved(const Context& context, CUdeviceptr address, size_t bytes) {
    auto after = context.reservations.upper_bound(address);
    if (after == context.reservations.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return address + bytes <= begin + size;
}

// Whether mapped memory covers a range without gaps.
bool is_mapped(const Context& context, CUdeviceptr address, size_t bytes) {
    for (CUdeviceptr at = address; at < address + bytes;) {
        auto found = context.allocations.find(at);
        if (found == context.allocations.end() || found->second.memory == 0) return false;
        at += found->second.bytes;
    }
    return true;
}

}  // namespace

CUDA_API cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long flags) {
    return context_call("cuMemAddressReserve", [&](Context& context) -> CUresult {
        if (!is_whole(bytes) || flags != 0) return CUDA_ERROR_INVALID_VALUE;
        const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* found = mmap(nullptr, bytes + GRANULE, PROT_NONE, kind, -1, 0);
        if (found == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        // Unmaps the parts before and after the aligned range.
        const auto begin = reinterpret_cast<CUdeviceptr>(found);
        *address = round_up(begin, GRANULE);
        if (*address > begin) munmap(found, *address - begin);
        if (*address < begin + GRANULE) munmap(pointer(*address + bytes), begin + GRANULE - *address);
        context.reservations[*address] = bytes;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    return context_call("cuMemAddressFree", [&](Context& context) -> CUresult {
        auto found = context.reservations.find(address);
        if (found == context.reservations.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
        auto mapped = context.allocations.lower_bound(address);
        if (mapped != context.allocations.end() && mapped->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
        munmap(pointer(address), bytes);
        context.reservations.erase(found);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemCreate(unsigned long long* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
    return context_call("cuMemCreate", [&](Context& context) -> CUresult {
        const bool is_here = properties->location_type == 1 && properties->location_id == context.device;
        if (!is_whole(bytes) || flags != 0 || properties->type != 1 || !is_here) return CUDA_ERROR_INVALID_VALUE;
        if (taken(device_of(context)) + bytes > memory_of_device()) return CUDA_ERROR_OUT_OF_MEMORY;
        *handle = ++context.memories_created;
        context.memories[*handle] = {bytes, true, false};
        context.direct += bytes;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemRelease(unsigned long long handle) {
    return context_call("cuMemRelease", [&](Context& context) -> CUresult {
        auto found = context.memories.find(handle);
        if (found == context.memories.end() || !found->second.held) return CUDA_ERROR_INVALID_VALUE;
        found->second.held = false;
        forget_if_unused(context, handle);
        return CUDA_SUCCESS;
    });
}

// The memory is not accessible until access is granted.
CUDA_API cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, unsigned long long handle,
                  unsigned long long flags) {
    return context_call("cuMemMap", [&](Context& context) -> CUresult {
        auto memory = context.memories.find(handle);
        if (memory == context.memories.end() || memory->second.mapped) return CUDA_ERROR_INVALID_VALUE;
        if (offset != 0 || flags != 0 || memory->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
        if (address % GRANULE != 0 || !is_reserved(context, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        auto next = context.allocations.lower_bound(address);
        if (next != context.allocations.end() && next->first < address + bytes) return CUDA_ERROR_INVALID_VALUE;
        if (is_device_memory(context, address, 1)) return CUDA_ERROR_INVALID_VALUE;
        memory->second.mapped = true;
        context.allocations[address] = {bytes, 0, 0, nullptr, handle, false};
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* access, size_t count) {
    return context_call("cuMemSetAccess", [&](Context& context) -> CUresult {
        const bool is_here = count == 1 && access->location_type == 1 && access->location_id == context.device;
        if (!is_here || access->flags != 3 || !is_mapped(context, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        for (auto at = context.allocations.find(address);
             at != context.allocations.end() && at->first < address + bytes; ++at) {
            auto& [begin, allocation] = *at;
            if (allocation.is_accessible) continue;
            if (!remap(begin, allocation.bytes, PROT_READ | PROT_WRITE)) return CUDA_ERROR_OUT_OF_MEMORY;
            memset(pointer(begin), 0xff, allocation.bytes);
            allocation.is_accessible = true;
        }
        return CUDA_SUCCESS;
    });
}

// Does not wait for running work, which would find the memory unmapped: programs must not rely on a wait.
CUDA_API cuMemUnmap(CUdeviceptr address, size_t bytes) {
    return context_call("cuMemUnmap", [&](Context& context) -> CUresult {
        auto found = context.allocations.find(address);
        if (found == context.allocations.end() || found->second.memory == 0) return CUDA_ERROR_INVALID_VALUE;
        if (found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
        const unsigned long long handle = found->second.memory;
        remap(address, bytes, PROT_NONE);
        context.allocations.erase(found);
        context.memories[handle].mapped = false;
        forget_if_unused(context, handle);
        return CUDA_SUCCESS;
    });
}
