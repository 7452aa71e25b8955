#include "call.h"

Driver& Driver::get() {
    // Never destroyed: programs call the driver from destructors of their own.
    static Driver* driver = new Driver();
    return *driver;
}

std::recursive_mutex& driver_lock() {
    static std::recursive_mutex* lock = new std::recursive_mutex();
    return *lock;
}

Context*& current_context() {
    static thread_local Context* current = nullptr;
    return current;
}

CUresult planned_failure(const char* function) {
    static std::map<std::string, unsigned long> calls;
    const auto& failures = Settings::get().failures;
    if (failures.empty()) return CUDA_SUCCESS;
    const unsigned long call = ++calls[function];
    for (const PlannedFailure& failure : failures) {
        if (failure.function != function || failure.call != call) continue;
        // These make a context unusable on a GPU.
        const bool lasting = failure.code >= CUDA_ERROR_ILLEGAL_ADDRESS &&
                             failure.code <= CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
        if (lasting && current_context() != nullptr) current_context()->error = failure.code;
        return failure.code;
    }
    return CUDA_SUCCESS;
}

// The same for the stand-in cuBLASLt, which is no part of a driver.
CUDA_API emulated_failure(const char* function) {
    std::lock_guard<std::recursive_mutex> lock(driver_lock());
    return planned_failure(function);
}
