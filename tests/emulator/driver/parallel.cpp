// For the emulated libraries: the thread pool that runs kernels.
#include "../device/workers.h"
#include "cuda.h"

extern "C" __attribute__((visibility("default"))) void emulated_parallel(
    size_t pieces, const std::function<void(size_t)>* work) {
    emulator::Workers::shared().run(pieces, *work);
}
