// Capture of streams into graphs, and their replay.
#include <cstdio>
#include <cstdlib>

#include "call.h"
#include "memory.h"
#include "streams.h"

namespace {

std::set<Graph*>& graphs() {
    static auto* graphs = new std::set<Graph*>();
    return *graphs;
}

std::set<GraphExec*>& executables() {
    static auto* executables = new std::set<GraphExec*>();
    return *executables;
}

// Whether every captured node is joined to the stream in which the capture began.
bool is_joined(const Capture& capture) {
    const auto& nodes = capture.graph.nodes;
    std::vector<bool> before_end(nodes.size(), false);
    std::vector<size_t> found = capture.origin->captured_after;
    while (!found.empty()) {
        const size_t node = found.back();
        found.pop_back();
        if (before_end[node]) continue;
        before_end[node] = true;
        for (size_t earlier : nodes[node].after) found.push_back(earlier);
    }
    for (bool is_before : before_end) {
        if (!is_before) return false;
    }
    return true;
}

// Runs the nodes in an order allowed by their dependencies: the captured order; with EMULATED_DELAY, the last captured
// runnable node first, or a random one.
void replay(const Graph& graph) {
    const size_t count = graph.nodes.size();
    const Settings::Delay delay = Settings::get().delay;
    std::vector<size_t> missing(count);
    std::vector<std::vector<size_t>> followers(count);
    std::vector<size_t> able;  // ascending
    for (size_t i = 0; i < count; i++) {
        missing[i] = graph.nodes[i].after.size();
        for (size_t earlier : graph.nodes[i].after) followers[earlier].push_back(i);
        if (missing[i] == 0) able.push_back(i);
    }
    while (!able.empty()) {
        size_t next = 0;
        if (delay == Settings::BY_CHANCE) {
            next = choose(able.size());
        } else if (delay != Settings::NOTHING) {
            next = able.size() - 1;
        }
        const size_t node = able[next];
        able.erase(able.begin() + static_cast<std::ptrdiff_t>(next));
        graph.nodes[node].work();
        for (size_t follower : followers[node]) {
            if (--missing[follower] == 0)
                able.insert(std::lower_bound(able.begin(), able.end(), follower), follower);
        }
    }
}

// Launching or destroying a graph whose kernels are unloaded is undefined: a driver may crash, or appear to work.
void require_modules(const char* function, const GraphExec& executable) {
    for (const auto& module : executable.graph->modules) {
        if (!module.expired()) continue;
        fprintf(stderr, "emulated driver: %s of a graph that calls kernels of an unloaded module\n", function);
        abort();
    }
}

void leave_capture(Context& context, const std::shared_ptr<Capture>& capture) {
    for (Stream* stream : context.streams) {
        if (stream->capture == capture) {
            stream->capture = nullptr;
            stream->captured_after.clear();
        }
    }
    Driver::get().capturing.erase(capture.get());
}

int capture_status(const Stream& stream) {
    if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_info(const char* function, Stream* handle, int* status, unsigned long long* id,
                      Graph** graph) {
    return context_call(function, [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        *status = capture_status(*stream);
        if (*status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            if (id != nullptr) *id = stream->capture->id;
            if (graph != nullptr) *graph = &stream->capture->graph;
        }
        return CUDA_SUCCESS;
    });
}

}  // namespace

CUresult invalidate(Capture& capture) {
    capture.invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult refuse_while_capturing() {
    CUresult result = CUDA_SUCCESS;
    for (Capture* capture : Driver::get().capturing) {
        if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED) result = invalidate(*capture);
    }
    return result;
}

void capture_work(Stream& stream, std::function<void()> work) {
    auto& nodes = stream.capture->graph.nodes;
    auto& after = stream.captured_after;
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    nodes.push_back({std::move(work), after});
    after = {nodes.size() - 1};
}

CUDA_API cuStreamBeginCapture_v2(Stream* handle, int mode) {
    return context_call("cuStreamBeginCapture_v2", [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->is_default()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
        Driver& driver = Driver::get();
        stream->capture = std::make_shared<Capture>();
        stream->capture->id = ++driver.captures;
        stream->capture->mode = mode;
        stream->capture->origin = stream;
        driver.capturing.insert(stream->capture.get());
        return CUDA_SUCCESS;
    });
}

CUDA_API cuStreamEndCapture(Stream* handle, Graph** graph) {
    return context_call("cuStreamEndCapture", [&](Context& context) -> CUresult {
        *graph = nullptr;
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        const std::shared_ptr<Capture> capture = stream->capture;
        if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
        if (capture->origin != stream) {
            invalidate(*capture);
            return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        }
        const bool joined = is_joined(*capture);
        leave_capture(context, capture);
        if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        *graph = new Graph(std::move(capture->graph));
        graphs().insert(*graph);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuStreamIsCapturing(Stream* stream, int* status) {
    return capture_info("cuStreamIsCapturing", stream, status, nullptr, nullptr);
}

CUDA_API cuStreamGetCaptureInfo_v2(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                   const void** dependencies, size_t* count) {
    if (dependencies != nullptr) *dependencies = nullptr;
    if (count != nullptr) *count = 0;
    return capture_info("cuStreamGetCaptureInfo_v2", stream, status, id, graph);
}

CUDA_API cuStreamGetCaptureInfo_v3(Stream* stream, int* status, unsigned long long* id, Graph** graph,
                                   const void** dependencies, const void** edges, size_t* count) {
    if (dependencies != nullptr) *dependencies = nullptr;
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = 0;
    return capture_info("cuStreamGetCaptureInfo_v3", stream, status, id, graph);
}

CUDA_API cuThreadExchangeStreamCaptureMode(int* mode) {
    return plain_call("cuThreadExchangeStreamCaptureMode", [&] {
        std::swap(*mode, calling_thread().capture_mode);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuGraphInstantiateWithFlags(GraphExec** executable, Graph* graph, unsigned long long) {
    return context_call("cuGraphInstantiateWithFlags", [&](Context&) -> CUresult {
        if (graphs().count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
        *executable = new GraphExec{std::make_shared<const Graph>(*graph)};
        executables().insert(*executable);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuGraphUpload(GraphExec* executable, Stream*) {
    return context_call("cuGraphUpload", [&](Context&) -> CUresult {
        return executables().count(executable) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

CUDA_API cuGraphLaunch(GraphExec* executable, Stream* handle) {
    return context_call("cuGraphLaunch", [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (executables().count(executable) == 0) return CUDA_ERROR_INVALID_VALUE;
        require_modules("cuGraphLaunch", *executable);
        const std::shared_ptr<const Graph> graph = executable->graph;
        enqueue(*stream, [graph] { replay(*graph); });
        return CUDA_SUCCESS;
    });
}

CUDA_API cuGraphDestroy(Graph* graph) {
    return plain_call("cuGraphDestroy", [&]() -> CUresult {
        if (graphs().erase(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
        delete graph;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuGraphExecDestroy(GraphExec* executable) {
    return plain_call("cuGraphExecDestroy", [&]() -> CUresult {
        if (executables().erase(executable) == 0) return CUDA_ERROR_INVALID_VALUE;
        require_modules("cuGraphExecDestroy", *executable);
        delete executable;
        return CUDA_SUCCESS;
    });
}

// If `nodes` is null, returns only the number of nodes.
CUDA_API cuGraphGetNodes(Graph* graph, const GraphNode** nodes, size_t* count) {
    return plain_call("cuGraphGetNodes", [&]() -> CUresult {
        if (graphs().count(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
        if (nodes == nullptr) {
            *count = graph->nodes.size();
            return CUDA_SUCCESS;
        }
        *count = std::min(*count, graph->nodes.size());
        for (size_t i = 0; i < *count; i++) nodes[i] = &graph->nodes[i];
        return CUDA_SUCCESS;
    });
}
