#include "call.h"

#include <pthread.h>

Driver& Driver::get() {
    // Never destroyed: programs call the driver from their own destructors.
    static Driver* driver = new Driver();
    return *driver;
}

std::recursive_mutex& driver_lock() {
    static std::recursive_mutex* lock = new std::recursive_mutex();
    return *lock;
}

CallingThread& calling_thread() {
    static const pthread_key_t key = [] {
        pthread_key_t key;
        if (pthread_key_create(&key, [](void* thread) { delete static_cast<CallingThread*>(thread); }) != 0) abort();
        return key;
    }();
    auto* thread = static_cast<CallingThread*>(pthread_getspecific(key));
    if (thread == nullptr) {
        thread = new CallingThread();
        pthread_setspecific(key, thread);
    }
    return *thread;
}

CUresult planned_failure(const char* function) {
    static std::map<std::string, unsigned long> calls;
    const auto& failures = Settings::get().failures;
    if (failures.empty()) return CUDA_SUCCESS;
    const unsigned long call = ++calls[function];
    for (const PlannedFailure& failure : failures) {
        if (failure.function != function || failure.call != call) continue;
        // These errors make a context unusable on a GPU. Not 712 and 713, about registered host memory, nor 720.
        const bool lasting = failure.code >= CUDA_ERROR_ILLEGAL_ADDRESS &&
                             failure.code < CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE && failure.code != 712 &&
                             failure.code != 713;
        if (lasting && current_context() != nullptr) current_context()->error = failure.code;
        return failure.code;
    }
    return CUDA_SUCCESS;
}

// The same for the emulated cuBLASLt. Not part of a CUDA driver.
CUDA_API emulated_failure(const char* function) {
    std::lock_guard<std::recursive_mutex> lock(driver_lock());
    return planned_failure(function);
}

// Not part of a CUDA driver: tests that use several modes in one process look it up by name. Sets the mode of all work
// that the calling thread enqueues from now on, with the values of EMULATED_ORDER, EMULATED_SUMS and EMULATED_GELU;
// environment variables take precedence. Returns 0, or 1 for an invalid value.
CUDA_API emulated_way(int order, const char* sums, const char* gelu) {
    return static_cast<CUresult>(calling_thread().way.ask(order, sums, gelu) ? 0 : 1);
}

// For the emulated libraries.
extern "C" __attribute__((visibility("default"))) const Way* emulated_current_way() { return &calling_thread().way; }
