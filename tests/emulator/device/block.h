// One block: its threads, its barrier, its shared memory, and the scheduler that runs them to the end.
//
// A thread runs until it has to wait, and then yields its OS thread to the next lane of its warp. A correct kernel
// gives the same result in every thread order, so the launch's mode sets it: 0 forward, 1 backward, any other number is
// the seed of a random order that changes on every turn.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../ways.h"
#include "fiber.h"
#include "language.h"
#include "shared_memory.h"

namespace emulator {

// Source location of a call in a kernel, to distinguish barriers and for messages.
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

// A `cp.async` in flight.
struct PendingCopy {
    void* shared;
    const void* global;
    int group;
};

struct Thread {
    Fiber fiber;
    char* stack = nullptr;  // from the first turn of the thread until its end
    uint3 index{};
    int copy_group = 0;  // group of the next `cp.async`
    size_t pending = 0;  // number of copies in flight
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
    static constexpr int MOST_COLLECTIVES = 8;  // lanes in different branches may each be in one

    // Lanes whose thread has not ended; and the subsets of these that have not begun, that can run, and that wait at
    // the block's barrier.
    unsigned running, fresh, ready, at_barrier;
    int collectives;
    Collective collective[MOST_COLLECTIVES];
};

struct Order {
    int seed;

    bool backward() const { return seed == 1; }
    bool by_chance() const { return seed != 0 && seed != 1; }
};

// Fast random numbers (xorshift).
struct Chance {
    uint32_t state = 1;

    void seed(uint32_t number) { state = (number + 1) * 2654435769u | 1; }

    // A random number below `bound`.
    uint32_t below(uint32_t bound) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        return static_cast<uint32_t>(static_cast<uint64_t>(state) * bound >> 32);
    }

    void shuffle(unsigned* numbers, unsigned count) {
        for (unsigned i = count; i > 1; i--) std::swap(numbers[i - 1], numbers[below(i)]);
    }
};

class Block;

// The built-in variables of a thread (threadIdx and others), stored at the start of its stack.
struct Identity {
    uint3 thread{};
    uint3 block{};
    dim3 block_size{}, grid_size{};
    Block* in = nullptr;
};

inline Identity& current() { return *static_cast<Identity*>(stack_data()); }

class Block {
public:
    // Runs one block of `kernel`; false, with `error` set, if it did something that would be an error on a GPU.
    bool run(void (*kernel)(void**), void** arguments, uint3 index, dim3 size, dim3 grid, SharedMemory& shared,
             const Way& way) {
        kernel_ = kernel;
        arguments_ = arguments;
        identity_ = {{}, index, size, grid, this};
        shared_ = &shared;
        order_.seed = way.order;
        truncates_ = way.truncates;
        error_.clear();
        failed_ = false;
        shared.poison();
        chance_.seed(order_.seed + index.x + 65537 * index.y + 257 * index.z);
        begin_threads();
        while (running_ > 0 && !failed_) {
            if (!run_every_warp()) {
                report_deadlock();
            }
        }
        if (failed_) abandon_threads();
        return !failed_;
    }

    const std::string& error() const { return error_; }
    SharedMemory& shared() { return *shared_; }
    Order order() const { return order_; }
    bool truncates() const { return truncates_; }
    Chance& chance() { return chance_; }
    EMULATOR_UNCHECKED Thread& thread() { return thread_[running_thread_]; }
    EMULATOR_UNCHECKED Warp& warp() { return warp_[running_thread_ / 32]; }
    EMULATOR_UNCHECKED unsigned lane() const { return running_thread_ % 32; }

    // Called on a fiber: ends the block without unwinding its threads. It never returns, but is not declared so:
    // AddressSanitizer would look for the end of the stack.
    __attribute__((noinline, cold)) void fail(const std::string& message) {
        const uint3 b = identity_.block, t = thread().index;
        char place[120];
        snprintf(place, sizeof place, " [block (%u,%u,%u) thread (%u,%u,%u)]", b.x, b.y, b.z, t.x, t.y, t.z);
        error_ = message + place;
        failed_ = true;
        while (failed_) pause();
    }

    // Suspends the fiber until its thread is ready again.
    EMULATOR_UNCHECKED __attribute__((noinline)) void pause() {
        Fiber& own = thread().fiber;
        switch_to(own, next_fiber());
    }

    EMULATOR_UNCHECKED void barrier(Site site) {
        if (at_barrier_ > 0 && barrier_site_ != site) {
            fail("divergent __syncthreads: some threads are at " + barrier_site_.text() + ", others at " +
                 site.text());
        }
        barrier_site_ = site;
        at_barrier_++;
        if (at_barrier_ == running_) {
            open_barrier();
        } else {
            warp().at_barrier |= 1u << lane();
            pause();
        }
    }

    // Runs `resolve` over the operands of all lanes of `mask`, once the last of them has arrived.
    EMULATOR_UNCHECKED void collective(unsigned mask, Site site, void* operand, void (*resolve)(void**, unsigned)) {
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
            pause();
        }
    }

    // Checks an address of an instruction that accesses 16 bytes of shared memory.
    void require_shared(const void* pointer, const char* instruction, Site site) {
        if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) {
            fail(site.text() + ": " + instruction + " at an address that is not a multiple of 16");
        }
        if (!shared_->holds(pointer, 16)) {
            fail(site.text() + ": " + instruction + " at an address that is not in shared memory");
        }
    }

private:
    // Lanes in different branches may each be in a collective if their masks are disjoint.
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

    __attribute__((noinline, cold)) void fail_diverged(unsigned mask, Site first, Site second) {
        if ((mask >> lane() & 1) == 0) {
            fail(second.text() + ": the calling lane is not in its own mask");
        }
        fail("lanes of a warp diverged: some are at " + first.text() + ", others at " + second.text());
    }

    // Returns the value of a variable and resets the variable.
    template <class T>
    EMULATOR_UNCHECKED static T take(T& variable) {
        const T taken = variable;
        variable = {};
        return taken;
    }

    void begin_threads() {
        const dim3 size = identity_.block_size;
        const unsigned count = size.x * size.y * size.z;
        threads_count_ = count;
        threads_.resize(count);
        warps_.resize((count + 31) / 32);
        turn_.resize(warps_.size());
        thread_ = threads_.data();
        warp_ = warps_.data();
        for (unsigned i = 0; i < warps_.size(); i++) {
            turn_[i] = order_.backward() ? warps_.size() - 1 - i : i;
            Warp& warp = warps_[i];
            warp.running = count - 32 * i >= 32 ? ~0u : (1u << (count - 32 * i)) - 1;
            warp.fresh = warp.ready = warp.running;
            warp.at_barrier = 0;
            warp.collectives = 0;
        }
        running_ = count;
        at_barrier_ = 0;
    }

    // Threads ended by an error did not return from their functions.
    void abandon_threads() {
        for (auto& thread : threads_) {
            if (thread.stack != nullptr) stacks_.give_back_abandoned(std::exchange(thread.stack, nullptr));
            thread.pending = 0;
            thread.copies.clear();
        }
    }

    // Returns false if no thread could run.
    bool run_every_warp() {
        if (order_.by_chance()) {
            chance_.shuffle(turn_.data(), static_cast<unsigned>(turn_.size()));
        }
        bool any = false;
        for (unsigned warp : turn_) {
            // In random order, warps alternate before they have to wait; otherwise each runs as far as it can.
            while (run_lanes(warp) && !failed_) {
                any = true;
                if (order_.by_chance()) break;
            }
            if (failed_) return true;
        }
        return any;
    }

    // Gives every lane that can run one turn.
    EMULATOR_UNCHECKED bool run_lanes(unsigned warp) {
        lanes_ = next_lane_ = 0;
        for (unsigned ready = take(warp_[warp].ready); ready != 0; ready &= ready - 1) {
            lane_[lanes_++] = 32 * warp + __builtin_ctz(ready);
        }
        if (lanes_ == 0) return false;
        if (order_.backward()) {
            std::reverse(lane_, lane_ + lanes_);
        } else if (order_.by_chance()) {
            chance_.shuffle(lane_, lanes_);
        }
        // Each lane switches directly to the next one.
        switch_to(scheduler_, next_fiber());
        give_back_left_stack();
        return true;
    }

    // The fiber of the next lane of this turn, or the scheduler's after the last one.
    EMULATOR_UNCHECKED Fiber& next_fiber() {
        give_back_left_stack();
        if (failed_ || next_lane_ == lanes_) return scheduler_;
        const unsigned index = lane_[next_lane_++];
        Thread& thread = thread_[index];
        if (is_fresh(index)) {
            thread.stack = stacks_.take();
            thread.fiber.prepare(thread.stack, run_threads);
            *static_cast<Identity*>(data_of(thread.stack)) = identity_;
            begin_thread(index, thread.stack);
        }
        running_thread_ = index;
        return thread.fiber;
    }

    EMULATOR_UNCHECKED bool is_fresh(unsigned index) const { return warp_[index / 32].fresh >> index % 32 & 1; }

    EMULATOR_UNCHECKED void begin_thread(unsigned index, char* stack) {
        const dim3 size = identity_.block_size;
        Thread& thread = thread_[index];
        warp_[index / 32].fresh &= ~(1u << index % 32);
        thread.index = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
        thread.copy_group = 0;
        static_cast<Identity*>(data_of(stack))->thread = thread.index;
    }

    // AddressSanitizer sees all threads as one: it is told only when the scheduler switches to a thread, and when the
    // last thread switches back. The thread's identity affects only its messages, and telling it takes as long as a
    // switch.
    EMULATOR_UNCHECKED void switch_to(Fiber& from, Fiber& to) {
        left_ = &from;
        if (&from == &scheduler_ || &to == &scheduler_) from.sanitizer.leave_for(to.sanitizer);
        switch_stacks(from, to);
        if (&from == &scheduler_ || left_ == &scheduler_) from.sanitizer.come_back();
    }

    // Entry point of a stack: runs its thread, and then the following threads of the turn that have not begun either.
    static void run_threads() {
        Block& block = *current().in;
        if (block.left_ == &block.scheduler_) begin_fiber(block.scheduler_);
        do {
            block.kernel_(block.arguments_);
            block.end_thread();
        } while (block.take_over_stack());
        Fiber& own = block.thread().fiber;
        Fiber& next = block.next_fiber_after(block.thread());
        block.switch_to(own, next);
        __builtin_unreachable();
    }

    // Returns false if the next thread of the turn cannot take over the stack of the ended one.
    EMULATOR_UNCHECKED bool take_over_stack() {
        if (failed_ || next_lane_ == lanes_ || !is_fresh(lane_[next_lane_])) return false;
        Thread& ended = thread();
        running_thread_ = lane_[next_lane_++];
        thread().stack = take(ended.stack);
        thread().fiber.sanitizer = ended.fiber.sanitizer;
        begin_thread(running_thread_, thread().stack);
        return true;
    }

    // The stack remains in use until the switch.
    EMULATOR_UNCHECKED Fiber& next_fiber_after(Thread& ended) {
        Fiber& next = next_fiber();
        left_stack_ = take(ended.stack);
        return next;
    }

    EMULATOR_UNCHECKED void give_back_left_stack() {
        if (left_stack_ != nullptr) stacks_.give_back(take(left_stack_));
    }

    EMULATOR_UNCHECKED void end_thread() {
        if (thread().pending != 0) {
            fail("a thread ended with a cp.async that it did not wait for");
        }
        Warp& warp = this->warp();
        warp.running &= ~(1u << lane());
        running_--;
        // Collectives and barriers that wait for all running threads may now be complete.
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

    EMULATOR_UNCHECKED void finish_collective(Warp& warp, int i) {
        Collective& done = warp.collective[i];
        done.resolve(done.operands, done.arrived);
        warp.ready |= done.arrived & ~(1u << lane());
        warp.collectives--;
        if (i != warp.collectives) {
            done = warp.collective[warp.collectives];
        }
    }

    EMULATOR_UNCHECKED void open_barrier() {
        for (Warp *warp = warp_, *end = warp_ + (threads_count_ + 31) / 32; warp != end; warp++) {
            warp->ready |= take(warp->at_barrier);
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
        failed_ = true;
        error_ = "deadlock: " + std::to_string(running_) + " of " + std::to_string(threads_.size()) +
                 " threads wait for others" + where + " [block (" + std::to_string(b.x) + "," +
                 std::to_string(b.y) + "," + std::to_string(b.z) + ")]";
    }

    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    Thread* thread_ = nullptr;  // data of `threads_` and `warps_`
    Warp* warp_ = nullptr;
    std::vector<unsigned> turn_;
    Stacks stacks_;
    Fiber scheduler_;
    Fiber* left_ = nullptr;       // fiber left by the last switch
    char* left_stack_ = nullptr;  // stack of a thread that has ended
    unsigned lane_[32], lanes_ = 0, next_lane_ = 0;  // lanes of this turn
    unsigned threads_count_ = 0;
    unsigned running_thread_ = 0;
    unsigned running_ = 0;
    unsigned at_barrier_ = 0;
    Site barrier_site_{};
    void (*kernel_)(void**) = nullptr;
    void** arguments_ = nullptr;
    Identity identity_;
    SharedMemory* shared_ = nullptr;
    Order order_{};
    bool truncates_ = false;
    Chance chance_;
    bool failed_ = false;
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
    __builtin_unreachable();
}
