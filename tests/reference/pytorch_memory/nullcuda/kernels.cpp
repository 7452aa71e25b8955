// Kernels: registered and launched like real ones, never run.
#include "cards.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

// Registers of a thread, which only a compiled kernel tells. Occupancy follows from it; PyTorch's sizes of scratch memory
// did not depend on it in any recorded program.
constexpr int REGISTERS = 32;

// The launch configuration between `<<<...>>>` and the launch itself.
struct LaunchConfiguration {
    dim3 grid, block;
    size_t shared_memory;
    void *stream;
};

static thread_local LaunchConfiguration pending;

// The newest architecture among those that PyTorch's binaries contain and this card can run: CUB chooses its tile sizes,
// and with them its scratch memory, by it.
static int binary_version() {
    constexpr int COMPILED[] = {50, 60, 70, 75, 80, 86, 90, 100, 120};
    int capability = 10 * card().major + card().minor, version = 0;
    for (int compiled : COMPILED)
        if (compiled / 10 == card().major && compiled <= capability) version = compiled;
    return version;
}

extern "C" {

// Calls that nvcc generates.

void **__cudaRegisterFatBinary(void *) { return (void **)malloc(sizeof(void *)); }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_memory, void *stream) {
    pending = {grid, block, shared_memory, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_memory, void *stream) {
    *grid = pending.grid;
    *block = pending.block;
    *shared_memory = pending.shared_memory;
    *(void **)stream = pending.stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return cudaSuccess;
}

// Questions about a kernel.

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = REGISTERS;
    attributes->ptxVersion = attributes->binaryVersion = binary_version();
    attributes->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *, int threads, size_t shared_memory, unsigned) {
    int rounded = (threads + 31) / 32 * 32;  // whole warps
    int by_threads = card().threads / rounded;
    int by_registers = (64 << 10) / (REGISTERS * rounded);
    int by_shared_memory = card().shared_memory / (int)(shared_memory + card().reserved_shared_memory() + 1);
    *blocks = std::max(1, std::min({by_threads, by_registers, by_shared_memory, card().blocks}));
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, const void *kernel, int threads, size_t shared_memory) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared_memory, 0);
}

}  // extern "C"
