// Entry of calls into the emulated driver: serialized, counted, and failing as planned by EMULATED_FAIL or after an
// earlier error.
#pragma once

#include "../ways.h"
#include "state.h"

// The lock that every call holds.
std::recursive_mutex& driver_lock();

// The planned failure of this call of `function`, or success.
CUresult planned_failure(const char* function);

// The driver's state of each calling thread. Not in thread-local variables: these are shared memory on threads that run
// a block.
struct CallingThread {
    Context* context = nullptr;  // the current context, or null
    int capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    Way way = Way::of_environment();  // mode of the work that it enqueues
};

CallingThread& calling_thread();

inline Context*& current_context() { return calling_thread().context; }

// A call that needs no context. `body` returns a CUresult.
template <class Body>
CUresult plain_call(const char* function, Body body) {
    std::lock_guard<std::recursive_mutex> lock(driver_lock());
    const CUresult planned = planned_failure(function);
    if (planned != CUDA_SUCCESS) return planned;
    if (!Driver::get().initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return body();
}

// A call in the current context, which must exist and be free of errors.
template <class Body>
CUresult context_call(const char* function, Body body) {
    return plain_call(function, [&]() -> CUresult {
        Context* context = current_context();
        if (context == nullptr || context->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
        if (context->error != CUDA_SUCCESS) return context->error;
        return body(*context);
    });
}
