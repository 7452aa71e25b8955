// One block: its threads, its barrier, its shared memory, and the loop that runs them to the end.
//
// A thread runs until it has to wait. Whatever order the threads take, a correct kernel gives the same
// result, so EMULATED_ORDER sets it: 0 forward, 1 backward, any other number seeds an order by chance that
// changes on every turn.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "fiber.h"
#include "language.h"
#include "shared_memory.h"

namespace emulator {

// Where in a kernel something was called, to tell barriers apart and to name them in messages.
struct Site {
    const char* file;
    int line;

    static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator!=(const Site& other) const { return line != other.line || file != other.file; }
    std::string text() const {
        const char* slash = strrchr(file, '/');
        return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line);
    }
};

// A copy that `cp.async` has begun.
struct PendingCopy {
    void* shared;
    const void* global;
    int group;
};

struct Thread {
    enum State : uint8_t { FRESH, READY, AT_BARRIER, IN_COLLECTIVE, ENDED };

    Fiber fiber;
    char* stack = nullptr;
    State state = FRESH;
    uint3 index{};
    int copy_group = 0;  // the one that the next `cp.async` joins
    std::vector<PendingCopy> copies;
};

// A warp-wide operation that some lanes have reached and others have not.
struct Collective {
    unsigned mask, arrived;
    Site site;
    void* operands[32];
    void (*resolve)(void** operands, unsigned arrived);

    void begin(unsigned mask, Site site, void (*resolve)(void**, unsigned)) {
        this->mask = mask;
        this->arrived = 0;
        this->site = site;
        this->resolve = resolve;
    }
};

struct Warp {
    static constexpr int MOST_COLLECTIVES = 8;  // lanes in separate branches may each be in one

    unsigned running;  // lanes whose thread has not ended
    int collectives;
    Collective collective[MOST_COLLECTIVES];
};

struct Order {
    int seed;

    static Order from_environment() {
        const char* text = getenv("EMULATED_ORDER");
        return {text ? atoi(text) : 0};
    }
    bool backward() const { return seed == 1; }
    bool by_chance() const { return seed != 0 && seed != 1; }
};

class Block;

// What kernels read of themselves, at the beginning of the stack that they run on.
struct Identity {
    uint3 thread{};
    uint3 block{};
    dim3 block_size{}, grid_size{};
    Block* in = nullptr;
};

inline Identity& current() { return *static_cast<Identity*>(stack_data()); }

class Block {
public:
    // Runs one block of `kernel`; false with `error` set where it did what a GPU would not survive.
    bool run(void (*kernel)(void**), void** arguments, uint3 index, dim3 size, dim3 grid,
             SharedMemory& shared) {
        kernel_ = kernel;
        arguments_ = arguments;
        identity_ = {{}, index, size, grid, this};
        shared_ = &shared;
        error_.clear();
        shared.poison();
        chance_.seed(1 + order_.seed + index.x + 65537 * index.y + 257 * index.z);
        begin_threads();
        while (running_ > 0 && error_.empty()) {
            if (!run_every_warp()) {
                report_deadlock();
            }
        }
        for (auto& thread : threads_) {
            if (thread.stack != nullptr) stacks_.give_back_abandoned(std::exchange(thread.stack, nullptr));
        }
        return error_.empty();
    }

    const std::string& error() const { return error_; }
    SharedMemory& shared() { return *shared_; }
    Order order() const { return order_; }
    std::minstd_rand& chance() { return chance_; }
    Thread& thread() { return threads_[running_thread_]; }
    Warp& warp() { return warps_[running_thread_ / 32]; }
    unsigned lane() const { return running_thread_ % 32; }

    // Called on a fiber: the block ends here, without unwinding its threads.
    [[noreturn]] __attribute__((noinline, cold)) void fail(const std::string& message) {
        const uint3 b = identity_.block, t = thread().index;
        char place[120];
        snprintf(place, sizeof place, " [block (%u,%u,%u) thread (%u,%u,%u)]", b.x, b.y, b.z, t.x, t.y, t.z);
        error_ = message + place;
        for (;;) pause(thread().state);
    }

    // Leaves the fiber until something makes the thread ready again.
    __attribute__((noinline)) void pause(Thread::State state) {
        Thread& thread = threads_[running_thread_];
        thread.state = state;
        switch_fibers(thread.fiber, scheduler_);
    }

    void barrier(Site site) {
        if (at_barrier_ > 0 && barrier_site_ != site) {
            fail("divergent __syncthreads: some threads are at " + barrier_site_.text() + ", others at " +
                 site.text());
        }
        barrier_site_ = site;
        at_barrier_++;
        if (at_barrier_ == running_) {
            open_barrier();
        } else {
            pause(Thread::AT_BARRIER);
        }
    }

    // Runs `resolve` over what every lane of `mask` brings, once the last of them has come.
    void collective(unsigned mask, Site site, void* operand, void (*resolve)(void**, unsigned)) {
        Warp& warp = this->warp();
        const unsigned own = 1u << lane();
        int i = 0;
        while (i < warp.collectives && warp.collective[i].mask != mask) i++;
        if (i == warp.collectives) {
            require_mask(warp, mask, site);
            warp.collectives++;
            warp.collective[i].begin(mask, site, resolve);
        }
        Collective& pending = warp.collective[i];
        if ((mask & own) == 0 || pending.site != site || pending.resolve != resolve) {
            fail_diverged(mask, pending.site, site);
        }
        pending.operands[lane()] = operand;
        pending.arrived |= own;
        if (pending.arrived == (mask & warp.running)) {
            finish_collective(warp, i);
        } else {
            pause(Thread::IN_COLLECTIVE);
        }
    }

    // For instructions that take 16 bytes of shared memory.
    void require_shared(const void* pointer, const char* instruction, Site site) {
        if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) {
            fail(site.text() + ": " + instruction + " at an address that is not a multiple of 16");
        }
        if (!shared_->holds(pointer, 16)) {
            fail(site.text() + ": " + instruction + " at an address that is not in shared memory");
        }
    }

private:
    // Lanes in separate branches may each be in a collective, if their masks have no lane in common.
    void require_mask(const Warp& warp, unsigned mask, Site site) {
        for (int i = 0; i < warp.collectives; i++) {
            if (warp.collective[i].arrived & mask) {
                fail(site.text() + ": overlapping masks, another lane waits at " +
                     warp.collective[i].site.text());
            }
        }
        if (warp.collectives == Warp::MOST_COLLECTIVES) {
            fail(site.text() + ": too many different masks at once");
        }
    }

    [[noreturn]] __attribute__((noinline, cold)) void fail_diverged(unsigned mask, Site first, Site second) {
        if ((mask >> lane() & 1) == 0) {
            fail(second.text() + ": the calling lane is not in its own mask");
        }
        fail("lanes of a warp diverged: some are at " + first.text() + ", others at " + second.text());
    }

    void begin_threads() {
        const dim3 size = identity_.block_size;
        const unsigned count = size.x * size.y * size.z;
        threads_.resize(count);
        warps_.resize((count + 31) / 32);
        turn_.resize(warps_.size());
        for (unsigned i = 0; i < warps_.size(); i++) {
            turn_[i] = order_.backward() ? warps_.size() - 1 - i : i;
            warps_[i].running = count - 32 * i >= 32 ? ~0u : (1u << (count - 32 * i)) - 1;
            warps_[i].collectives = 0;
        }
        for (unsigned i = 0; i < count; i++) {
            Thread& thread = threads_[i];
            thread.state = Thread::FRESH;
            thread.index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
            thread.copy_group = 0;
            thread.copies.clear();
        }
        running_ = count;
        at_barrier_ = 0;
    }

    // False if no thread could run.
    bool run_every_warp() {
        if (order_.by_chance()) {
            std::shuffle(turn_.begin(), turn_.end(), chance_);
        }
        bool any = false;
        for (unsigned warp : turn_) {
            // By chance, warps take turns in the middle of their work; otherwise each goes as far as it can.
            while (run_lanes(warp) && error_.empty()) {
                any = true;
                if (order_.by_chance()) break;
            }
            if (!error_.empty()) return true;
        }
        return any;
    }

    bool run_lanes(unsigned warp) {
        unsigned lanes[32], count = 0;
        const unsigned first = 32 * warp, end = std::min<size_t>(first + 32, threads_.size());
        for (unsigned i = first; i < end; i++) {
            if (threads_[i].state <= Thread::READY) lanes[count++] = i;
        }
        if (order_.backward()) {
            std::reverse(lanes, lanes + count);
        } else if (order_.by_chance()) {
            std::shuffle(lanes, lanes + count, chance_);
        }
        for (unsigned i = 0; i < count && error_.empty(); i++) {
            resume(lanes[i]);
        }
        return count > 0;
    }

    void resume(unsigned index) {
        Thread& thread = threads_[index];
        if (thread.state == Thread::FRESH) {
            thread.stack = stacks_.take();
            thread.fiber.prepare(thread.stack, run_thread);
            thread.state = Thread::READY;
            identity_.thread = thread.index;
            *reinterpret_cast<Identity*>(thread.stack) = identity_;
        }
        running_thread_ = index;
        switch_fibers(scheduler_, thread.fiber);
        if (thread.state == Thread::ENDED) {
            stacks_.give_back(std::exchange(thread.stack, nullptr));
        }
    }

    static void run_thread() {
        Block& block = *current().in;
        begin_fiber(block.scheduler_);
        block.kernel_(block.arguments_);
        block.end_thread();
        for (;;) block.pause(Thread::ENDED);
    }

    void end_thread() {
        if (!thread().copies.empty()) {
            fail("a thread ended with a cp.async that it did not wait for");
        }
        Warp& warp = this->warp();
        warp.running &= ~(1u << lane());
        running_--;
        // Those who wait for all running threads may now be complete.
        for (int i = 0; i < warp.collectives;) {
            if (warp.collective[i].arrived == (warp.collective[i].mask & warp.running)) {
                finish_collective(warp, i);
            } else {
                i++;
            }
        }
        if (at_barrier_ > 0 && at_barrier_ == running_) {
            open_barrier();
        }
    }

    void finish_collective(Warp& warp, int i) {
        Collective& done = warp.collective[i];
        done.resolve(done.operands, done.arrived);
        const unsigned first = running_thread_ / 32 * 32;
        for (unsigned lanes = done.arrived; lanes != 0; lanes &= lanes - 1) {
            threads_[first + __builtin_ctz(lanes)].state = Thread::READY;
        }
        warp.collectives--;
        if (i != warp.collectives) {
            done = warp.collective[warp.collectives];
        }
    }

    void open_barrier() {
        for (auto& thread : threads_) {
            if (thread.state == Thread::AT_BARRIER) thread.state = Thread::READY;
        }
        at_barrier_ = 0;
    }

    void report_deadlock() {
        const uint3 b = identity_.block;
        std::string where =
            at_barrier_ > 0 ? ", " + std::to_string(at_barrier_) + " at " + barrier_site_.text() : "";
        for (const Warp& warp : warps_) {
            for (int i = 0; i < warp.collectives; i++) {
                where += ", " + std::to_string(__builtin_popcount(warp.collective[i].arrived)) +
                         " lanes at " + warp.collective[i].site.text();
            }
        }
        error_ = "deadlock: " + std::to_string(running_) + " of " + std::to_string(threads_.size()) +
                 " threads wait for others" + where + " [block (" + std::to_string(b.x) + "," +
                 std::to_string(b.y) + "," + std::to_string(b.z) + ")]";
    }

    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<unsigned> turn_;
    Stacks stacks_;
    Fiber scheduler_;
    unsigned running_thread_ = 0;
    unsigned running_ = 0;
    unsigned at_barrier_ = 0;
    Site barrier_site_{};
    void (*kernel_)(void**) = nullptr;
    void** arguments_ = nullptr;
    Identity identity_;
    SharedMemory* shared_ = nullptr;
    const Order order_ = Order::from_environment();
    std::minstd_rand chance_;
    std::string error_;
};

}  // namespace emulator

#define threadIdx (emulator::current().thread)
#define blockIdx (emulator::current().block)
#define blockDim (emulator::current().block_size)
#define gridDim (emulator::current().grid_size)
constexpr int warpSize = 32;

#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(emulator::current().in->shared().dynamic())

inline void __syncthreads(emulator::Site site = emulator::Site::here()) {
    emulator::current().in->barrier(site);
}

[[noreturn]] inline void __trap(emulator::Site site = emulator::Site::here()) {
    emulator::current().in->fail("__trap at " + site.text());
}
