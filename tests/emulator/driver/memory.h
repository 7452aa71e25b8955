// Device memory is host memory, with a separate block for each allocation; counters follow the rules of NVIDIA's
// driver.
#pragma once

#include "state.h"

// Device memory that a context uses before the first allocation.
constexpr size_t CONTEXT_OVERHEAD = size_t{64} << 20;

// Rounding of sizes in counters, as in NVIDIA's driver: allocations from a pool, and reservations of cuMemAlloc.
// Reservations of pools are rounded to EMULATED_POOL_STEP.
constexpr size_t POOL_GRANULE = 512;
constexpr size_t RESERVE_GRANULE = size_t{2} << 20;

inline size_t round_up(size_t bytes, size_t granule) { return (bytes + granule - 1) / granule * granule; }

DeviceState& device_of(const Context& context);

// Bytes of the device in use.
size_t taken(const DeviceState& device);

// Total bytes of the device.
size_t memory_of_device();

// Whether [address, address + bytes) lies in one live allocation, or in memory that is mapped without a gap.
bool is_device_memory(const Context& context, CUdeviceptr address, size_t bytes);

// Whether the host range is page-locked.
bool is_pinned(const void* host, size_t bytes);

// Releases memory that pools reserve beyond their release thresholds, as the driver does at a synchronization.
void trim_pools(Context& context);

void open_context(Context& context);
void close_context(DeviceState& device);

// Limit of dynamic shared memory in cuFuncSetAttribute.
int largest_dynamic_shared_bytes();
