// The CUDA runtime: one device, its memory, copies, streams and events. What is not here returns success (build.sh).
#include "cards.h"
#include "memory.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

static thread_local cudaError_t last_error = cudaSuccess;

static cudaError_t failure(cudaError_t error) { return last_error = error; }

// An opaque handle. Stubs never read it, and PyTorch creates few.
template <class Handle> static cudaError_t create(Handle *handle) {
    *handle = (Handle)malloc(1);
    return cudaSuccess;
}

// What was copied to device memory, by address, while values are kept. Kernels do not change it.
static std::mutex values_lock;
static std::map<const void *, std::string> values;
static bool keeps_values;

// Called by scripts of the recorder, between two operations of PyTorch.
extern "C" void nullcuda_keep_values(bool keeps) {
    std::lock_guard<std::mutex> guard(values_lock);
    keeps_values = keeps;
    values.clear();
}

// Copies between host addresses happen. Device memory has no values: the host reads zeros, or kept values of this size.
static cudaError_t copy(void *to, const void *from, size_t bytes) {
    bool to_device = is_device_memory(to), from_device = is_device_memory(from);
    if (!to_device && !from_device) {
        memmove(to, from, bytes);
        return cudaSuccess;
    }
    std::lock_guard<std::mutex> guard(values_lock);
    auto kept = from_device ? values.find(from) : values.end();
    bool is_kept = kept != values.end() && kept->second.size() == bytes;
    if (!to_device) {
        is_kept ? memcpy(to, kept->second.data(), bytes) : memset(to, 0, bytes);
    } else if (is_kept || (keeps_values && !from_device)) {
        values[to] = is_kept ? kept->second : std::string((const char *)from, bytes);
    } else {
        values.erase(to);
    }
    return cudaSuccess;
}

static int attribute(cudaDeviceAttr attribute) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return card().major;
    case cudaDevAttrComputeCapabilityMinor: return card().minor;
    case cudaDevAttrMultiProcessorCount: return card().multiprocessors;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return card().threads;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return card().blocks;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return card().shared_memory;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        // Before Volta, a block cannot request more than the default.
        return card().major < 7 ? 48 << 10 : card().shared_memory - card().reserved_shared_memory();
    case cudaDevAttrReservedSharedMemoryPerBlock: return card().reserved_shared_memory();
    case cudaDevAttrL2CacheSize: return card().l2_cache;
    // Equal on all these cards.
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return 1024;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 0x7fffffff;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 0xffff;
    case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 64 << 10;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported: return 1;
    default: return 0;
    }
}

extern "C" {

// Device

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int) {
    *value = attribute(which);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "nullcuda %s", card().key);
    properties->totalGlobalMem = card().memory;
    properties->major = card().major;
    properties->minor = card().minor;
    properties->multiProcessorCount = card().multiprocessors;
    properties->maxThreadsPerMultiProcessor = card().threads;
    properties->maxBlocksPerMultiProcessor = card().blocks;
    properties->l2CacheSize = card().l2_cache;
    properties->sharedMemPerMultiprocessor = card().shared_memory;
    properties->sharedMemPerBlockOptin = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    properties->reservedSharedMemPerBlock = card().reserved_shared_memory();
    properties->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
    properties->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
    properties->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
    properties->warpSize = attribute(cudaDevAttrWarpSize);
    properties->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
    properties->textureAlignment = attribute(cudaDevAttrTextureAlignment);
    for (int axis = 0; axis < 3; axis++) {
        properties->maxThreadsDim[axis] = attribute(cudaDeviceAttr(cudaDevAttrMaxBlockDimX + axis));
        properties->maxGridSize[axis] = attribute(cudaDeviceAttr(cudaDevAttrMaxGridDimX + axis));
    }
    properties->unifiedAddressing = properties->managedMemory = properties->cooperativeLaunch = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    *can = 0;
    return cudaSuccess;
}

// Errors

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetLastError() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorInvalidValue";
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "invalid value";
}

// Memory

cudaError_t cudaMalloc(void **range, size_t bytes) {
    *range = reserve(bytes);
    return *range ? cudaSuccess : failure(cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void *range) {
    return !range || release(range) ? cudaSuccess : failure(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = card().memory;
    *available = card().memory - bytes_in_use();
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned) {
    return posix_memalign(memory, 4096, bytes) ? failure(cudaErrorMemoryAllocation) : cudaSuccess;
}

// bitsandbytes' paged states. Host memory: prefetching is for attribute `cudaDevAttrConcurrentManagedAccess`.
cudaError_t cudaMallocManaged(void **memory, size_t bytes, unsigned) { return cudaHostAlloc(memory, bytes, 0); }

cudaError_t cudaFreeHost(void *memory) {
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes); }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    return copy(to, from, bytes);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
    bool on_device = is_device_memory(pointer);
    *attributes = {};
    attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    (on_device ? attributes->devicePointer : attributes->hostPointer) = (void *)pointer;
    return cudaSuccess;
}

// Streams and events

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return create(stream); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return create(stream); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return create(event); }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int *priority) {
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t stream, cudaStreamCaptureStatus *status, unsigned long long *, cudaGraph_t *, const cudaGraphNode_t **,
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData **,
#endif
    size_t *) {
    // The other results are defined only while a stream is being captured.
    return cudaStreamIsCapturing(stream, status);
}

}  // extern "C"
