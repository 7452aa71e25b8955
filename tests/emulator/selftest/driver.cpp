// Tests of memory, pools, errors, invalid captures, and rejected launches.
#include <cmath>
#include <cstring>
#include <thread>

#include "gpu.h"

namespace {

constexpr size_t MIB = size_t{1} << 20;

uint64_t attribute(void* pool, int which) {
    uint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

size_t free_bytes() {
    size_t free, total;
    REQUIRE(cuMemGetInfo_v2(&free, &total));
    return free;
}

void* create_pool() {
    CUmemPoolProps properties{};
    properties.allocation_type = 1;
    properties.location_type = 1;
    void* pool;
    REQUIRE(cuMemPoolCreate(&pool, &properties));
    return pool;
}

// Run with EMULATED_MEMORY = 256 MiB and EMULATED_POOL_STEP = 2 MiB.
void counts_memory() {
    Gpu gpu;
    const size_t before = free_bytes();
    EXPECT_EQUAL(before, 192 * MIB);  // minus the context's overhead
    void* pool = create_pool();
    uint64_t keep_all = ~uint64_t{0};
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));

    CUdeviceptr a, b, c;
    REQUIRE(cuMemAllocFromPoolAsync(&a, 5 * MIB + 1, pool, gpu.compute));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5 * MIB + 512);
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 6 * MIB);
    EXPECT_EQUAL(free_bytes(), before - 6 * MIB);
    REQUIRE(cuMemAllocFromPoolAsync(&b, 10 * MIB, pool, gpu.compute));
    REQUIRE(cuMemFreeAsync(b, gpu.compute));
    REQUIRE(cuStreamSynchronize(gpu.compute));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 5 * MIB + 512);
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 15 * MIB + 512);
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 16 * MIB);  // still reserved
    uint64_t zero = 0;
    REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 5 * MIB + 512);
    REQUIRE(cuMemPoolTrimTo(pool, 0));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 6 * MIB);
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 16 * MIB);

    EXPECT_EQUAL(cuMemAllocFromPoolAsync(&c, 187 * MIB, pool, gpu.compute), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQUAL(cuMemAlloc_v2(&c, 187 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemAllocFromPoolAsync(&c, 186 * MIB - 1, pool, gpu.compute));
    EXPECT_EQUAL(free_bytes(), 0u);
    REQUIRE(cuMemFreeAsync(c, gpu.compute));
    REQUIRE(cuMemFreeAsync(a, gpu.compute));
    EXPECT_EQUAL(cuMemFreeAsync(a, gpu.compute), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemPoolDestroy(pool));
    EXPECT_EQUAL(free_bytes(), before);
}

// Run without EMULATED_POOL_STEP.
void reserves_in_steps() {
    Gpu gpu;
    void* pool = create_pool();
    CUdeviceptr a, b;
    REQUIRE(cuMemAllocFromPoolAsync(&a, 1, pool, gpu.compute));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB);
    REQUIRE(cuMemAllocFromPoolAsync(&b, 32 * MIB, pool, gpu.compute));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 64 * MIB);
    REQUIRE(cuMemFreeAsync(b, gpu.compute));
    REQUIRE(cuStreamSynchronize(gpu.compute));
    EXPECT_EQUAL(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 32 * MIB);
}

void poisons_new_memory_and_checks_bounds() {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(100);
    unsigned char host[101];
    REQUIRE(cuMemcpyDtoH_v2(host, x, 100));
    for (int i = 0; i < 100; i++) EXPECT_EQUAL(host[i], 0xff);
    EXPECT_EQUAL(cuMemcpyDtoH_v2(host, x, 101), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(cuMemcpyHtoD_v2(x + 1, host, 100), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(cuMemcpyHtoD_v2(0, host, 1), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuMemFree_v2(x));
    EXPECT_EQUAL(cuMemcpyDtoH_v2(host, x, 1), CUDA_ERROR_INVALID_VALUE);
}

void refuses_wrong_launches() {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(256);
    void* missing;
    EXPECT_EQUAL(cuModuleGetFunction(&missing, gpu.module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
    void* kernel = gpu.function("matrix_loads");
    CUdeviceptr address = x;
    void* arguments[] = {&address};
    void* none[] = {nullptr};
    const auto launch = [&](unsigned grid, unsigned block, unsigned shared, void** parameters) {
        return cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, shared, gpu.compute, parameters, nullptr);
    };
    EXPECT_EQUAL(launch(1, 1025, 512, arguments), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(launch(1, 0, 512, arguments), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(launch(0, 32, 512, arguments), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(launch(1, 32, 512, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(launch(1, 32, 512, none), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQUAL(launch(1, 32, 49152, arguments), CUDA_ERROR_INVALID_VALUE);
    const int most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    EXPECT_EQUAL(cuFuncSetAttribute(kernel, most, 300 << 10), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuFuncSetAttribute(kernel, most, 64 << 10));
    address = gpu.allocate(32 * 16 * 4);
    REQUIRE(launch(1, 32, 49153, arguments));
    address = 0;  // the launch has its own copy
    REQUIRE(cuStreamSynchronize(gpu.compute));
}

void loses_the_device_after_a_wrong_kernel() {
    Gpu gpu;
    CUdeviceptr y = gpu.allocate(256);
    void* arguments[] = {&y};
    REQUIRE(cuLaunchKernel(gpu.function("diverges_at_barrier"), 1, 1, 1, 32, 1, 1, 0, gpu.compute, arguments,
                           nullptr));
    EXPECT_EQUAL(cuStreamSynchronize(gpu.compute), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQUAL(cuMemAlloc_v2(&y, 4), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQUAL(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
}

void spoils_captures() {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(256);
    void* graph;
    const int mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    int status = -1;

    REQUIRE(cuStreamBeginCapture_v2(gpu.compute, mode));
    EXPECT_EQUAL(cuStreamSynchronize(gpu.compute), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REQUIRE(cuStreamIsCapturing(gpu.compute, &status));
    EXPECT_EQUAL(status, static_cast<int>(CU_STREAM_CAPTURE_STATUS_INVALIDATED));
    EXPECT_EQUAL(cuStreamEndCapture(gpu.compute, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    Signal fork;
    REQUIRE(cuStreamBeginCapture_v2(gpu.compute, mode));
    fork.between(gpu.compute, gpu.copy);
    REQUIRE(cuMemsetD32Async(x, 0, 64, gpu.copy));
    EXPECT_EQUAL(cuStreamEndCapture(gpu.compute, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

    Signal outside;
    REQUIRE(cuEventRecord(outside.event, gpu.copy));
    REQUIRE(cuStreamBeginCapture_v2(gpu.compute, mode));
    EXPECT_EQUAL(cuStreamWaitEvent(gpu.compute, outside.event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    EXPECT_EQUAL(cuStreamEndCapture(gpu.compute, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    REQUIRE(cuStreamBeginCapture_v2(gpu.compute, mode));
    REQUIRE(cuEventRecord(fork.event, gpu.compute));
    EXPECT_EQUAL(cuEventQuery(fork.event), CUDA_ERROR_CAPTURED_EVENT);
    REQUIRE(cuStreamEndCapture(gpu.compute, &graph));
    REQUIRE(cuGraphDestroy(graph));
}

// Aborts the process: a module is unloaded while a graph that calls its kernel still exists.
void unloads_module_before_graph(bool launches) {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(256);
    void *graph, *executable;
    REQUIRE(cuStreamBeginCapture_v2(gpu.compute, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    REQUIRE(gpu.scale(gpu.compute, x, x, 2, 64));
    REQUIRE(cuStreamEndCapture(gpu.compute, &graph));
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    REQUIRE(cuGraphLaunch(executable, gpu.compute));
    REQUIRE(cuCtxSynchronize());
    REQUIRE(cuModuleUnload(gpu.module));
    REQUIRE(launches ? cuGraphLaunch(executable, gpu.compute) : cuGraphExecDestroy(executable));
}

// Run with EMULATED_FAIL=cuMemAlloc_v2:2:2,cuLaunchKernel:1:700.
void fails_as_planned() {
    Gpu gpu;
    CUdeviceptr x = gpu.allocate(256), y;
    EXPECT_EQUAL(cuMemAlloc_v2(&y, 256), CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cuMemAlloc_v2(&y, 256));
    EXPECT_EQUAL(gpu.scale(gpu.compute, y, x, 2, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQUAL(cuStreamSynchronize(gpu.compute), CUDA_ERROR_ILLEGAL_ADDRESS);
    const char* name = nullptr;
    REQUIRE(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
    EXPECT(strcmp(name, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
}

// Work runs in the mode that its thread had set when it was enqueued, whenever it runs and whatever other threads set.
void goes_the_way_of_its_thread() {
    EXPECT_EQUAL(emulated_delay("compute"), CUDA_SUCCESS);
    Gpu gpu;
    const std::vector<float> ones(256, 1.0f);
    const CUdeviceptr x = gpu.allocate(1024), forward = gpu.allocate(1024), backward = gpu.allocate(1024);
    REQUIRE(cuMemcpyHtoD_v2(x, ones.data(), 1024));
    // Each thread reads the value that the opposite thread writes, if that thread ran first: the result depends on the
    // thread order.
    const auto launch = [&](CUdeviceptr y) {
        CUdeviceptr from = x;
        void* arguments[] = {&y, &from};
        REQUIRE(cuLaunchKernel(gpu.function("lacks_barrier"), 1, 1, 1, 256, 1, 1, 0, gpu.compute, arguments, nullptr));
    };
    EXPECT_EQUAL(emulated_way(0, "nearest", "unrounded"), CUDA_SUCCESS);
    std::thread other([&] {
        REQUIRE(cuCtxSetCurrent(gpu.context));
        EXPECT_EQUAL(emulated_way(1, "truncated", "refused"), CUDA_SUCCESS);
        launch(backward);
    });
    other.join();
    launch(forward);
    EXPECT_EQUAL(emulated_way(1, "nearest", "rounded"), CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(gpu.compute));
    for (const CUdeviceptr y : {forward, backward}) {
        std::vector<float> found(256);
        REQUIRE(cuMemcpyDtoH_v2(found.data(), y, 1024));
        const bool first_is_set = !std::isnan(found[0]), last_is_set = !std::isnan(found[255]);
        EXPECT_EQUAL(first_is_set, y == backward);
        EXPECT_EQUAL(last_is_set, y == forward);
    }
    EXPECT(emulated_way(0, "nearly", "unrounded") != CUDA_SUCCESS);
    EXPECT(emulated_way(0, "nearest", "round") != CUDA_SUCCESS);
}

// Run with EMULATED_DEVICES=2 and EMULATED_CAPABILITY=8.6.
void lists_devices() {
    REQUIRE(cuInit(0));
    int count = 0, major = 0, minor = 0, most_shared = 0;
    REQUIRE(cuDeviceGetCount(&count));
    EXPECT_EQUAL(count, 2);
    REQUIRE(cuDeviceGetAttribute(&major, 75, 1));
    REQUIRE(cuDeviceGetAttribute(&minor, 76, 1));
    REQUIRE(cuDeviceGetAttribute(&most_shared, 97, 1));
    EXPECT_EQUAL(10 * major + minor, 86);
    EXPECT_EQUAL(most_shared, 99 << 10);
    char name[64];
    REQUIRE(cuDeviceGetName(name, sizeof name, 1));
    EXPECT(strncmp(name, "emulated", 8) == 0);
    void* context;
    EXPECT_EQUAL(cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_INVALID_DEVICE);
}

}  // namespace

int main(int count, char** arguments) {
    const std::string which = count > 1 ? arguments[1] : "";
    if (which == "memory") {
        counts_memory();
        poisons_new_memory_and_checks_bounds();
        refuses_wrong_launches();
        loses_the_device_after_a_wrong_kernel();
        spoils_captures();
    } else if (which == "pool_steps") {
        reserves_in_steps();
    } else if (which == "unloads_before_launch" || which == "unloads_before_destroy") {
        unloads_module_before_graph(which == "unloads_before_launch");
    } else if (which == "planned_failures") {
        fails_as_planned();
    } else if (which == "ways") {
        goes_the_way_of_its_thread();
    } else if (which == "devices") {
        lists_devices();
    } else if (which == "no_device") {
        EXPECT_EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
    } else {
        fprintf(stderr, "which? memory, pool_steps, unloads_before_launch, unloads_before_destroy, planned_failures, ways, devices or no_device\n");
        return 2;
    }
    return finish("driver");
}
