// A context with two streams, and wrappers of the calls that tests use. Failed calls end the test at once.
#pragma once

#include <cstdlib>
#include <vector>

#include "driver_api.h"
#include "expect.h"

#define REQUIRE(call)                                                                           \
    do {                                                                                        \
        const CUresult required = (call);                                                       \
        if (required != CUDA_SUCCESS) {                                                         \
            fprintf(stderr, "%s:%d: %s failed with %d\n", __FILE__, __LINE__, #call, required); \
            exit(1);                                                                            \
        }                                                                                       \
    } while (false)

struct Gpu {
    void *context, *compute, *copy, *module;

    Gpu() {
        REQUIRE(cuInit(0));
        REQUIRE(cuDevicePrimaryCtxRetain(&context, 0));
        REQUIRE(cuCtxSetCurrent(context));
        REQUIRE(cuStreamCreate(&compute, CU_STREAM_NON_BLOCKING));
        REQUIRE(cuStreamCreate(&copy, CU_STREAM_NON_BLOCKING));
        REQUIRE(cuModuleLoadData(&module, "any image"));
    }
    // Resetting the context clears device errors.
    ~Gpu() { cuDevicePrimaryCtxReset_v2(0); }

    void* function(const char* name) {
        void* found;
        REQUIRE(cuModuleGetFunction(&found, module, name));
        return found;
    }

    CUdeviceptr allocate(size_t bytes) {
        CUdeviceptr address;
        REQUIRE(cuMemAlloc_v2(&address, bytes));
        return address;
    }

    float* pinned(size_t count) {
        void* host;
        REQUIRE(cuMemHostAlloc(&host, count * sizeof(float), 0));
        return static_cast<float*>(host);
    }

    // y = factor * x, `n` floats.
    CUresult scale(void* stream, CUdeviceptr y, CUdeviceptr x, float factor, int n) {
        void* arguments[] = {&y, &x, &factor, &n};
        const unsigned blocks = static_cast<unsigned>(n + 63) / 64;
        return cuLaunchKernel(function("scale"), blocks, 1, 1, 64, 1, 1, 0, stream, arguments, nullptr);
    }
};

// An event, recorded in one stream for another to wait for.
struct Signal {
    void* event;

    Signal() { REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING)); }
    void between(void* first, void* then) {
        REQUIRE(cuEventRecord(event, first));
        REQUIRE(cuStreamWaitEvent(then, event, 0));
    }
};
