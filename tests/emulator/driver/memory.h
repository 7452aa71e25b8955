// Device memory is host memory, each allocation its own; what the driver counts of it is counted as a driver
// would.
#pragma once

#include "state.h"

// What a context takes of a device before the first allocation.
constexpr size_t CONTEXT_OVERHEAD = size_t{64} << 20;

// Sizes are counted in these, as NVIDIA's driver does: allocations of a pool, and what cuMemAlloc reserves. What pools
// reserve is EMULATED_POOL_STEP's.
constexpr size_t POOL_GRANULE = 512;
constexpr size_t RESERVE_GRANULE = size_t{2} << 20;

inline size_t round_up(size_t bytes, size_t granule) { return (bytes + granule - 1) / granule * granule; }

DeviceState& device_of(const Context& context);

// Bytes of the device that are not free.
size_t taken(const DeviceState& device);

// Bytes that the device has.
size_t memory_of_device();

// Whether [address, address + bytes) lies in one live allocation, or in memory that is mapped without a gap.
bool is_device_memory(const Context& context, CUdeviceptr address, size_t bytes);

// Whether the host range is page-locked.
bool is_pinned(const void* host, size_t bytes);

// Gives up what pools reserve beyond their release thresholds, as the driver does at a synchronisation.
void trim_pools(Context& context);

void open_context(Context& context);
void close_context(DeviceState& device);

// What cuFuncSetAttribute may ask for.
int largest_dynamic_shared_bytes();
