#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "call.h"
#include "streams.h"

namespace {

// Fills uninitialised and freed memory with bytes of 0xff, a NaN in every floating-point type.
void poison(void* memory, size_t bytes) { memset(memory, 0xff, bytes); }

void* new_memory(size_t bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, POOL_GRANULE, bytes) != 0) return nullptr;
    poison(memory, bytes);
    return memory;
}

// Freed memory is kept for a while, so that late work reads and writes poison instead of another allocation's data.
// AddressSanitizer keeps freed memory itself and reports such work, so with it memory is freed at once.
void release_memory(void* memory, size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
    (void)bytes;
    free(memory);
#else
    constexpr size_t MOST_KEPT = size_t{64} << 20;
    static std::deque<std::pair<void*, size_t>> kept;
    static size_t kept_bytes = 0;
    poison(memory, bytes);
    kept.emplace_back(memory, bytes);
    kept_bytes += bytes;
    while (kept_bytes > MOST_KEPT) {
        free(kept.front().first);
        kept_bytes -= kept.front().second;
        kept.pop_front();
    }
#endif
}

CUresult add_allocation(Context& context, CUdeviceptr* address, size_t bytes, size_t counted, size_t spanned,
                        Pool* pool) {
    void* memory = new_memory(bytes);
    if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = reinterpret_cast<CUdeviceptr>(memory);
    context.allocations[*address] = {bytes, counted, spanned, pool};
    return CUDA_SUCCESS;
}

// Counters change during the call, as in NVIDIA's driver: the memory can be allocated again in this stream.
void remove_from_counters(Context& context, const Allocation& allocation) {
    if (allocation.pool != nullptr) {
        allocation.pool->used -= allocation.counted;
        allocation.pool->spanned -= allocation.spanned;
    } else {
        context.direct -= allocation.counted;
    }
}

CUresult allocate_from(Pool& pool, Context& context, CUdeviceptr* address, size_t bytes) {
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const size_t counted = round_up(bytes, POOL_GRANULE);
    const size_t step = Settings::get().pool_step;
    const size_t spanned = Settings::get().pool_packs != 0 ? counted : round_up(counted, step);
    const size_t reserved = std::max(pool.reserved, round_up(pool.spanned + spanned, step));
    if (taken(device_of(context)) - pool.reserved + reserved > Settings::get().memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = add_allocation(context, address, bytes, counted, spanned, &pool);
    if (result != CUDA_SUCCESS) return result;
    pool.used += counted;
    pool.spanned += spanned;
    pool.reserved = reserved;
    pool.used_high = std::max(pool.used_high, pool.used);
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return CUDA_SUCCESS;
}

void trim(Pool& pool, size_t keep) {
    pool.reserved = std::max(round_up(pool.spanned, Settings::get().pool_step), std::min(pool.reserved, keep));
}

template <class Body>
CUresult pool_call(const char* function, Pool* pool, Body body) {
    return context_call(function, [&](Context& context) -> CUresult {
        if (device_of(context).pools.count(pool) == 0) return CUDA_ERROR_INVALID_VALUE;
        return body(context);
    });
}

}  // namespace

DeviceState& device_of(const Context& context) { return Driver::get().devices[context.device]; }

size_t taken(const DeviceState& device) {
    size_t bytes = device.context.retained > 0 ? CONTEXT_OVERHEAD : 0;
    bytes += round_up(device.context.direct, RESERVE_GRANULE);
    for (const Pool* pool : device.pools) bytes += pool->reserved;
    return bytes;
}

bool is_device_memory(const Context& context, CUdeviceptr address, size_t bytes) {
    auto after = context.allocations.upper_bound(address);
    if (after == context.allocations.begin()) return false;
    auto at = std::prev(after);
    CUdeviceptr end = at->first + at->second.bytes;
    // A mapped range continues in the next mapped piece.
    for (bool mapped = at->second.memory != 0; mapped && end < address + bytes; end += at->second.bytes) {
        ++at;
        mapped = at != context.allocations.end() && at->second.memory != 0 && at->first == end;
        if (!mapped) return false;
    }
    return at->second.is_accessible && address + bytes <= end;
}

size_t memory_of_device() { return Settings::get().memory; }

bool is_pinned(const void* host, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(host);
    const auto& pinned = Driver::get().pinned;
    auto after = pinned.upper_bound(address);
    if (after == pinned.begin()) return false;
    const auto& [begin, range] = *std::prev(after);
    return address + bytes <= begin + range.bytes;
}

void trim_pools(Context& context) {
    for (Pool* pool : device_of(context).pools) trim(*pool, pool->release_threshold);
}

void open_context(Context& context) {
    context.default_stream = Stream{&context, 0, false, false, 0, {}, nullptr, {}};
    context.streams.push_back(&context.default_stream);
}

void close_context(DeviceState& device) {
    Context& context = device.context;
    auto& events = Driver::get().events;
    for (auto event = events.begin(); event != events.end();) {
        const bool ends = (*event)->context == &context;
        if (ends) delete *event;
        event = ends ? events.erase(event) : std::next(event);
    }
    for (Stream* stream : context.streams) {
        if (!stream->is_default()) delete stream;
    }
    for (const auto& [address, allocation] : context.allocations) {
        if (allocation.memory != 0) continue;
        remove_from_counters(context, allocation);
        free(reinterpret_cast<void*>(address));
    }
    for (Pool* pool : device.pools) {
        if (pool != &device.default_pool) delete pool;
    }
    for (const auto& [address, bytes] : context.reservations) munmap(reinterpret_cast<void*>(address), bytes);
    const int ordinal = context.device;
    context = Context();
    context.device = ordinal;
    device.default_pool = Pool();
    device.pools = {&device.default_pool};
    device.current_pool = &device.default_pool;
}

CUDA_API cuMemGetInfo_v2(size_t* free, size_t* total) {
    return context_call("cuMemGetInfo_v2", [&](Context& context) {
        *total = Settings::get().memory;
        *free = *total - std::min(*total, taken(device_of(context)));
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    return context_call("cuMemAlloc_v2", [&](Context& context) -> CUresult {
        const CUresult capturing = refuse_while_capturing();
        if (capturing != CUDA_SUCCESS) return capturing;
        if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        const size_t before = round_up(context.direct, RESERVE_GRANULE);
        const size_t after = round_up(context.direct + bytes, RESERVE_GRANULE);
        if (taken(device_of(context)) - before + after > Settings::get().memory)
            return CUDA_ERROR_OUT_OF_MEMORY;
        const CUresult result = add_allocation(context, address, bytes, bytes, 0, nullptr);
        if (result == CUDA_SUCCESS) context.direct += bytes;
        return result;
    });
}

CUDA_API cuMemFree_v2(CUdeviceptr address) {
    return context_call("cuMemFree_v2", [&](Context& context) -> CUresult {
        if (address == 0) return CUDA_SUCCESS;
        const CUresult capturing = refuse_while_capturing();
        if (capturing != CUDA_SUCCESS) return capturing;
        auto found = context.allocations.find(address);
        if (found == context.allocations.end() || found->second.memory != 0) return CUDA_ERROR_INVALID_VALUE;
        // The driver waits for everything that may use the memory.
        for (Stream* stream : context.streams) finish(*stream);
        remove_from_counters(context, found->second);
        release_memory(reinterpret_cast<void*>(address), found->second.bytes);
        context.allocations.erase(found);
        return context.error;
    });
}

CUDA_API cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, Pool* pool, Stream* handle) {
    return pool_call("cuMemAllocFromPoolAsync", pool, [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture != nullptr) return invalidate(*stream->capture);
        return allocate_from(*pool, context, address, bytes);
    });
}

CUDA_API cuMemAllocAsync(CUdeviceptr* address, size_t bytes, Stream* handle) {
    return context_call("cuMemAllocAsync", [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture != nullptr) return invalidate(*stream->capture);
        return allocate_from(*device_of(context).current_pool, context, address, bytes);
    });
}

CUDA_API cuMemFreeAsync(CUdeviceptr address, Stream* handle) {
    return context_call("cuMemFreeAsync", [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture != nullptr) return invalidate(*stream->capture);
        auto found = context.allocations.find(address);
        if (found == context.allocations.end() || found->second.memory != 0) return CUDA_ERROR_INVALID_VALUE;
        const size_t bytes = found->second.bytes;
        remove_from_counters(context, found->second);
        context.allocations.erase(found);
        enqueue(*stream, [address, bytes] { release_memory(reinterpret_cast<void*>(address), bytes); });
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemPoolCreate(Pool** pool, const CUmemPoolProps* properties) {
    return plain_call("cuMemPoolCreate", [&]() -> CUresult {
        auto& devices = Driver::get().devices;
        const int device = properties->location_id;
        if (device < 0 || device >= static_cast<int>(devices.size())) return CUDA_ERROR_INVALID_VALUE;
        *pool = new Pool();
        devices[device].pools.insert(*pool);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemPoolDestroy(Pool* pool) {
    return pool_call("cuMemPoolDestroy", pool, [&](Context& context) -> CUresult {
        DeviceState& device = device_of(context);
        if (pool == &device.default_pool) return CUDA_ERROR_INVALID_VALUE;
        // Live allocations stay valid, but count as direct allocations of the device.
        for (auto& [address, allocation] : context.allocations) {
            if (allocation.pool == pool) {
                allocation.pool = nullptr;
                context.direct += allocation.counted;
            }
        }
        if (device.current_pool == pool) device.current_pool = &device.default_pool;
        device.pools.erase(pool);
        delete pool;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemPoolSetAttribute(Pool* pool, int attribute, void* value) {
    return pool_call("cuMemPoolSetAttribute", pool, [&](Context&) -> CUresult {
        const uint64_t wide =
            attribute >= CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *static_cast<uint64_t*>(value) : 0;
        switch (attribute) {
            case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
                pool->reuse[attribute] = *static_cast<int*>(value);
                return CUDA_SUCCESS;
            case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold = wide; return CUDA_SUCCESS;
            // High-water marks can only be reset, by writing zero.
            case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
                if (wide != 0) return CUDA_ERROR_INVALID_VALUE;
                pool->reserved_high = pool->reserved;
                return CUDA_SUCCESS;
            case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
                if (wide != 0) return CUDA_ERROR_INVALID_VALUE;
                pool->used_high = pool->used;
                return CUDA_SUCCESS;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
    });
}

CUDA_API cuMemPoolGetAttribute(Pool* pool, int attribute, void* value) {
    return pool_call("cuMemPoolGetAttribute", pool, [&](Context&) -> CUresult {
        uint64_t wide;
        switch (attribute) {
            case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
            case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
                *static_cast<int*>(value) = pool->reuse[attribute];
                return CUDA_SUCCESS;
            case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: wide = pool->release_threshold; break;
            case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: wide = pool->reserved; break;
            case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: wide = pool->reserved_high; break;
            case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: wide = pool->used; break;
            case CU_MEMPOOL_ATTR_USED_MEM_HIGH: wide = pool->used_high; break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
        *static_cast<uint64_t*>(value) = wide;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemPoolTrimTo(Pool* pool, size_t keep) {
    return pool_call("cuMemPoolTrimTo", pool, [&](Context&) {
        trim(*pool, keep);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceGetDefaultMemPool(Pool** pool, CUdevice device) {
    return plain_call("cuDeviceGetDefaultMemPool", [&]() -> CUresult {
        auto& devices = Driver::get().devices;
        if (device < 0 || device >= static_cast<int>(devices.size())) return CUDA_ERROR_INVALID_DEVICE;
        *pool = &devices[device].default_pool;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceGetMemPool(Pool** pool, CUdevice device) {
    return plain_call("cuDeviceGetMemPool", [&]() -> CUresult {
        auto& devices = Driver::get().devices;
        if (device < 0 || device >= static_cast<int>(devices.size())) return CUDA_ERROR_INVALID_DEVICE;
        *pool = devices[device].current_pool;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceSetMemPool(CUdevice device, Pool* pool) {
    return plain_call("cuDeviceSetMemPool", [&]() -> CUresult {
        auto& devices = Driver::get().devices;
        if (device < 0 || device >= static_cast<int>(devices.size())) return CUDA_ERROR_INVALID_DEVICE;
        if (devices[device].pools.count(pool) == 0) return CUDA_ERROR_INVALID_VALUE;
        devices[device].current_pool = pool;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemHostAlloc(void** host, size_t bytes, unsigned) {
    return context_call("cuMemHostAlloc", [&](Context&) -> CUresult {
        if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        *host = new_memory(bytes);
        if (*host == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
        Driver::get().pinned[reinterpret_cast<uintptr_t>(*host)] = {bytes, true};
        return CUDA_SUCCESS;
    });
}

// Does not wait for running copies: programs must not rely on a wait.
CUDA_API cuMemFreeHost(void* host) {
    return context_call("cuMemFreeHost", [&](Context&) -> CUresult {
        auto& pinned = Driver::get().pinned;
        auto found = pinned.find(reinterpret_cast<uintptr_t>(host));
        if (found == pinned.end() || !found->second.allocated) return CUDA_ERROR_INVALID_VALUE;
        release_memory(host, found->second.bytes);
        pinned.erase(found);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemHostRegister_v2(void* host, size_t bytes, unsigned) {
    return context_call("cuMemHostRegister_v2", [&](Context&) -> CUresult {
        if (host == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
        if (is_pinned(host, 1)) return 712;  // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        Driver::get().pinned[reinterpret_cast<uintptr_t>(host)] = {bytes, false};
        return CUDA_SUCCESS;
    });
}

CUDA_API cuMemHostUnregister(void* host) {
    return context_call("cuMemHostUnregister", [&](Context&) -> CUresult {
        auto& pinned = Driver::get().pinned;
        auto found = pinned.find(reinterpret_cast<uintptr_t>(host));
        if (found == pinned.end() || found->second.allocated)
            return 713;  // CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        pinned.erase(found);
        return CUDA_SUCCESS;
    });
}
