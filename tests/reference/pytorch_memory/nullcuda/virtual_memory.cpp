// The driver's functions that the runtime hands out: those behind expandable segments, and what PyTorch reads for the text of
// an out-of-memory error. Memory has a size alone.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <string>

#include "memory.h"

// The driver maps multiples of this size.
constexpr size_t GRANULARITY = 2 << 20;

static CUresult succeed(...) { return CUDA_SUCCESS; }

static CUresult error_string(CUresult, const char **text) {
    *text = "an error of nullcuda";
    return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *start, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
    *start = (CUdeviceptr)reserve_addresses(bytes);
    return *start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult free_addresses(CUdeviceptr start, size_t) {
    return release((void *)start) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult create(
    CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *, unsigned long long) {
    if (!take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = bytes;
    return CUDA_SUCCESS;
}

static CUresult release_memory(CUmemGenericAllocationHandle handle) {
    give_back(handle);
    return CUDA_SUCCESS;
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *, CUmemAllocationGranularity_flags) {
    *bytes = GRANULARITY;
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return (CUresult)cudaDeviceGetAttribute(value, (cudaDeviceAttr)attribute, device);
}

static CUresult device(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *context) {
    static char some;
    *context = (CUcontext)&some;
    return CUDA_SUCCESS;
}

// Functions that are not defined here return success.
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *status) {
    static const std::map<std::string, void *> functions = {
        {"cuGetErrorString", (void *)error_string}, {"cuMemAddressReserve", (void *)address_range},
        {"cuMemAddressFree", (void *)free_addresses}, {"cuMemCreate", (void *)create},
        {"cuMemRelease", (void *)release_memory}, {"cuMemGetAllocationGranularity", (void *)granularity},
        {"cuDeviceGetAttribute", (void *)device_attribute}, {"cuDeviceGet", (void *)device},
        {"cuCtxGetCurrent", (void *)current_context},
    };
    auto found = functions.find(name);
    *function = found == functions.end() ? (void *)succeed : found->second;
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
