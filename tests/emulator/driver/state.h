// State of the emulated driver: devices, each with one primary context, and the objects of a context.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda.h"
#include "settings.h"

struct Context;
struct Stream;
struct Capture;

// A point in a stream's work: the last record of an event. Waiters share ownership of it, independently of the event.
struct Moment {
    Stream* stream;
    bool reached = false;
    std::chrono::steady_clock::time_point time;
};

// One entry of a stream's queue: work to run, a point to mark as reached, or a point of another stream to wait for.
struct Operation {
    std::function<void()> work;
    std::shared_ptr<Moment> record;
    std::shared_ptr<Moment> wait;
    // Work that waits for other processes: called again until it returns true.
    std::function<bool()> attempt = nullptr;
};

struct Stream {
    Context* context;
    unsigned number;         // among those of its kind of priority, in the order of creation; the default stream is 0
    bool waits_for_default;  // not created with CU_STREAM_NON_BLOCKING
    bool put_off;            // EMULATED_DELAY: runs only when something waits for it
    int priority;
    std::deque<Operation> queue;
    std::shared_ptr<Capture> capture;    // while capturing
    std::vector<size_t> captured_after;  // dependencies of the next node
    std::chrono::milliseconds pretended{};  // artificial run time of its work so far

    bool is_default() const { return number == 0; }
};

struct Event {
    Context* context;
    bool timed;
    std::shared_ptr<Moment> last;      // null: never recorded, hence complete
    std::shared_ptr<Capture> capture;  // if recorded in a capture: then it represents `captured_after`
    std::vector<size_t> captured_after;
};

struct GraphNode {
    std::function<void()> work;
    std::vector<size_t> after;
};

struct Graph {
    std::vector<GraphNode> nodes;
    // Modules of the launched kernels; a pointer expires when its module is unloaded.
    std::vector<std::weak_ptr<const char>> modules;
};

// An instantiated graph, with the nodes at instantiation.
struct GraphExec {
    std::shared_ptr<const Graph> graph;
};

struct Capture {
    unsigned long long id;
    int mode;
    Stream* origin;
    Graph graph;
    bool invalid = false;
};

struct Pool {
    size_t used = 0, used_high = 0;
    size_t spanned = 0;  // what the allocations need of `reserved`: `used`, or more if the pool does not pack them
    size_t reserved = 0, reserved_high = 0;
    uint64_t release_threshold = 0;
    int reuse[4] = {1, 1, 1, 1};  // indexed by CU_MEMPOOL_ATTR_REUSE_*, stored but without effect
};

struct Allocation {
    size_t bytes;
    size_t counted;  // as counted by its pool or device
    size_t spanned;  // the same for `Pool::spanned`
    Pool* pool;      // null: from cuMemAlloc, or mapped
    unsigned long long memory = 0;  // handle of the mapped memory, or 0
    bool is_accessible = true;
};

// Memory from cuMemCreate.
struct Memory {
    size_t bytes;
    bool held;    // not yet released
    bool mapped;
};

struct Context {
    int device;
    unsigned retained = 0;
    CUresult error = CUDA_SUCCESS;  // once set, every further call fails with it
    Stream default_stream;
    std::vector<Stream*> streams;  // in the order of creation, the default stream first
    unsigned streams_created = 0;  // those without a higher priority
    size_t direct = 0;  // bytes from cuMemAlloc and cuMemCreate
    std::map<CUdeviceptr, Allocation> allocations;
    std::map<CUdeviceptr, size_t> reservations;  // size of each reserved address range
    std::map<unsigned long long, Memory> memories;
    unsigned long long memories_created = 0;
};

struct DeviceState {
    Context context;
    Pool default_pool;
    Pool* current_pool;
    std::set<Pool*> pools;
};

// Page-locked host memory.
struct PinnedRange {
    size_t bytes;
    bool allocated;  // true: by cuMemHostAlloc; false: registered
};

struct Driver {
    bool initialised = false;
    std::deque<DeviceState> devices;
    std::map<uintptr_t, PinnedRange> pinned;
    std::set<Event*> events;
    unsigned long long captures = 0;
    std::set<Capture*> capturing;

    static Driver& get();
};
