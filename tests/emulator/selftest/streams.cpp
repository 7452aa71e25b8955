// Tests of stream order: correct programs give correct numbers under every delay (EMULATED_DELAY), and programs without
// a required event give wrong ones. Prints the number of wrong steps of each.
#include <cstring>

#include "gpu.h"

namespace {

constexpr int N = 200, STEPS = 6;

// A missing event or wait.
enum Mistake {
    NONE,
    COMPUTE_AHEAD_OF_UPLOAD,
    UPLOAD_AHEAD_OF_COMPUTE,
    STAGING_REUSED,
    DOWNLOAD_AHEAD_OF_COMPUTE
};

// Counts the steps whose results are not twice the step number.
int count_wrong(const float* results) {
    int wrong = 0;
    for (int step = 0; step < STEPS; step++) {
        bool right = true;
        for (int i = 0; i < N; i++)
            right = right && results[step * N + i] == 2.0f * static_cast<float>(step + 1);
        wrong += !right;
    }
    return wrong;
}

// Every step uploads its numbers on the copy stream, through one staging buffer to one device buffer, and doubles them
// on the compute stream.
int wrong_uploads(Mistake mistake) {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(N * sizeof(float)), y = gpu.allocate(STEPS * N * sizeof(float));
    float *staging = gpu.pinned(N), *results = gpu.pinned(STEPS * N);
    Signal uploaded, computed;
    for (int step = 0; step < STEPS; step++) {
        if (step > 0 && mistake != STAGING_REUSED) REQUIRE(cuEventSynchronize(uploaded.event));
        for (int i = 0; i < N; i++) staging[i] = static_cast<float>(step + 1);
        if (step > 0 && mistake != UPLOAD_AHEAD_OF_COMPUTE)
            REQUIRE(cuStreamWaitEvent(gpu.copy, computed.event, 0));
        REQUIRE(cuMemcpyHtoDAsync_v2(x, staging, N * sizeof(float), gpu.copy));
        REQUIRE(cuEventRecord(uploaded.event, gpu.copy));
        if (mistake != COMPUTE_AHEAD_OF_UPLOAD) REQUIRE(cuStreamWaitEvent(gpu.compute, uploaded.event, 0));
        REQUIRE(gpu.scale(gpu.compute, y + step * N * sizeof(float), x, 2, N));
        REQUIRE(cuEventRecord(computed.event, gpu.compute));
    }
    REQUIRE(cuMemcpyDtoHAsync_v2(results, y, STEPS * N * sizeof(float), gpu.compute));
    REQUIRE(cuCtxSynchronize());
    return count_wrong(results);
}

// Every step computes its numbers in one device buffer and downloads them on the copy stream.
int wrong_downloads(Mistake mistake) {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(N * sizeof(float)), y = gpu.allocate(N * sizeof(float));
    float* results = gpu.pinned(STEPS * N);
    Signal computed, downloaded;
    const std::vector<float> ones(N, 1.0f);
    REQUIRE(cuMemcpyHtoD_v2(x, ones.data(), N * sizeof(float)));
    for (int step = 0; step < STEPS; step++) {
        if (step > 0) REQUIRE(cuStreamWaitEvent(gpu.compute, downloaded.event, 0));
        REQUIRE(gpu.scale(gpu.compute, y, x, 2.0f * static_cast<float>(step + 1), N));
        REQUIRE(cuEventRecord(computed.event, gpu.compute));
        if (mistake != DOWNLOAD_AHEAD_OF_COMPUTE) REQUIRE(cuStreamWaitEvent(gpu.copy, computed.event, 0));
        REQUIRE(cuMemcpyDtoHAsync_v2(results + step * N, y, N * sizeof(float), gpu.copy));
        REQUIRE(cuEventRecord(downloaded.event, gpu.copy));
    }
    REQUIRE(cuCtxSynchronize());
    return count_wrong(results);
}

// The same work as a graph, captured over both streams.
int wrong_replays(bool with_event) {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(N * sizeof(float)), y = gpu.allocate(N * sizeof(float));
    float *staging = gpu.pinned(N), *results = gpu.pinned(N);
    Signal forked, uploaded, joined;
    REQUIRE(cuStreamBeginCapture_v2(gpu.compute, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    forked.between(gpu.compute, gpu.copy);
    REQUIRE(cuMemcpyHtoDAsync_v2(x, staging, N * sizeof(float), gpu.copy));
    REQUIRE(cuEventRecord(uploaded.event, gpu.copy));
    if (with_event) REQUIRE(cuStreamWaitEvent(gpu.compute, uploaded.event, 0));
    REQUIRE(gpu.scale(gpu.compute, y, x, 2, N));
    joined.between(gpu.copy, gpu.compute);
    REQUIRE(cuMemcpyDtoHAsync_v2(results, y, N * sizeof(float), gpu.compute));
    void *graph, *executable;
    REQUIRE(cuStreamEndCapture(gpu.compute, &graph));
    size_t nodes = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQUAL(nodes, 3u);
    REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0));
    REQUIRE(cuGraphDestroy(graph));
    int wrong = 0;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) staging[i] = static_cast<float>(step + 1);
        REQUIRE(cuGraphLaunch(executable, gpu.compute));
        REQUIRE(cuStreamSynchronize(gpu.compute));
        wrong += results[N - 1] != 2.0f * static_cast<float>(step + 1);
    }
    REQUIRE(cuGraphExecDestroy(executable));
    return wrong;
}

// Pageable memory may be reused at once; synchronous copies do not wait for non-blocking streams.
void follows_rules_of_host_memory() {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(N * sizeof(float)), y = gpu.allocate(N * sizeof(float));
    std::vector<float> host(N, 3.0f);
    REQUIRE(cuMemcpyHtoDAsync_v2(x, host.data(), N * sizeof(float), gpu.copy));
    host.assign(N, 0.0f);
    REQUIRE(cuMemcpyDtoHAsync_v2(host.data(), x, N * sizeof(float), gpu.copy));
    EXPECT_EQUAL(host[N - 1], 3.0f);
    REQUIRE(gpu.scale(gpu.compute, y, x, 2, N));
    REQUIRE(cuStreamSynchronize(gpu.compute));
    REQUIRE(cuMemcpyDtoH_v2(host.data(), y, N * sizeof(float)));
    EXPECT_EQUAL(host[0], 6.0f);
}

void polls_to_the_end() {
    Gpu gpu;
    const CUdeviceptr x = gpu.allocate(4), y = gpu.allocate(4);
    REQUIRE(cuMemsetD32Async(x, 0, 1, gpu.compute));
    REQUIRE(gpu.scale(gpu.compute, y, x, 2, 1));
    void *begin, *end;
    REQUIRE(cuEventCreate(&begin, 0));
    REQUIRE(cuEventCreate(&end, 0));
    REQUIRE(cuEventRecord(begin, gpu.compute));
    REQUIRE(cuEventRecord(end, gpu.compute));
    int polls = 0;
    while (cuEventQuery(end) == CUDA_ERROR_NOT_READY) EXPECT(++polls < 100);
    while (cuStreamQuery(gpu.compute) == CUDA_ERROR_NOT_READY) EXPECT(++polls < 100);
    float milliseconds = -1;
    REQUIRE(cuEventElapsedTime(&milliseconds, begin, end));
    EXPECT(milliseconds >= 0);
}

}  // namespace

int main() {
    EXPECT_EQUAL(wrong_uploads(NONE), 0);
    EXPECT_EQUAL(wrong_downloads(NONE), 0);
    EXPECT_EQUAL(wrong_replays(true), 0);
    follows_rules_of_host_memory();
    polls_to_the_end();
    printf("%d %d %d %d %d\n", wrong_uploads(COMPUTE_AHEAD_OF_UPLOAD), wrong_uploads(UPLOAD_AHEAD_OF_COMPUTE),
           wrong_uploads(STAGING_REUSED), wrong_downloads(DOWNLOAD_AHEAD_OF_COMPUTE), wrong_replays(false));
    return finish("streams");
}
