// Fibers: stacks to switch between within one OS thread. One runs each CUDA thread, so that it can stop in
// the middle of a kernel (at a barrier, in a shuffle) until the others have come as far.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// The scheduler's own functions, which go wrong only where the emulator does: sanitizers would take most of its time.
#define EMULATOR_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

namespace emulator {

// A stack begins at a multiple of its size with a page for the data of who runs on it, found from any address
// on the stack (`stack_data`). Thread-local variables would not do: they belong to OS threads, and are slow
// in libraries.
constexpr size_t STACK_BYTES = 256 << 10;

inline void* stack_data() {
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) &
                                   ~(STACK_BYTES - 1));
}

// Stacks outlive blocks: mapping them costs more than running a small one.
class Stacks {
public:
    ~Stacks() {
        for (char* stack : free_) munmap(stack, STACK_BYTES);
    }

    char* take() {
        if (free_.empty()) {
            free_.push_back(map());
        }
        char* stack = free_.back();
        free_.pop_back();
        return stack;
    }

    void give_back(char* stack) { free_.push_back(stack); }

    // Gives back the stack of a thread that did not return from its functions, whose variables are still fenced.
    void give_back_abandoned(char* stack) {
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(stack + 2 * page(), STACK_BYTES - 2 * page());
#endif
        give_back(stack);
    }

private:
    static size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

    static char* map() {
        void* mapped = mmap(nullptr, 2 * STACK_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) give_up();
        char* begin = static_cast<char*>(mapped);
        const size_t before = -reinterpret_cast<uintptr_t>(begin) % STACK_BYTES;
        char* stack = begin + before;
        if (before > 0) munmap(begin, before);
        munmap(stack + STACK_BYTES, STACK_BYTES - before);
        // Growing past its end, a stack meets this page and not its data.
        if (mprotect(stack + page(), page(), PROT_NONE) != 0) give_up();
        return stack;
    }

    [[noreturn]] static void give_up() {
        perror("emulator: no memory for the stack of a thread");
        abort();
    }

    std::vector<char*> free_;
};

// Tells AddressSanitizer which stack is in use.
struct SanitizerStack {
#if defined(__SANITIZE_ADDRESS__)
    const void* begin = nullptr;
    size_t bytes = 0;
    void* fake = nullptr;

    EMULATOR_UNCHECKED void is(const void* stack, size_t size) {
        begin = stack;
        bytes = size;
        fake = nullptr;
    }
    EMULATOR_UNCHECKED void leave_for(const SanitizerStack& other) {
        __sanitizer_start_switch_fiber(&fake, other.begin, other.bytes);
    }
    EMULATOR_UNCHECKED void come_back() { __sanitizer_finish_switch_fiber(fake, nullptr, nullptr); }
    void learn_where_left() { __sanitizer_finish_switch_fiber(nullptr, &begin, &bytes); }
#else
    void is(const void*, size_t) {}
    void leave_for(const SanitizerStack&) {}
    void come_back() {}
    void learn_where_left() {}
#endif
};

#ifdef __x86_64__

// Saves the registers that a called function has to keep, then changes stacks.
extern "C" void emulator_switch_stacks(void** save, void* load);
asm(R"(
    .weak emulator_switch_stacks
    .hidden emulator_switch_stacks
    .type emulator_switch_stacks, @function
emulator_switch_stacks:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emulator_switch_stacks, . - emulator_switch_stacks
)");

struct Fiber {
    void* stack_pointer = nullptr;
    SanitizerStack sanitizer;

    EMULATOR_UNCHECKED void prepare(char* stack, void (*entry)()) {
        sanitizer.is(stack, STACK_BYTES);
        // `entry` begins as if called: a return address above it, and the six saved registers below.
        void** top = reinterpret_cast<void**>(stack + STACK_BYTES - 16);
        *--top = nullptr;
        *--top = reinterpret_cast<void*>(entry);
        stack_pointer = top - 6;
    }
};

EMULATOR_UNCHECKED inline void switch_stacks(Fiber& from, Fiber& to) {
    emulator_switch_stacks(&from.stack_pointer, to.stack_pointer);
}

#else

struct Fiber {
    ucontext_t context;
    SanitizerStack sanitizer;

    void prepare(char* stack, void (*entry)()) {
        sanitizer.is(stack, STACK_BYTES);
        getcontext(&context);
        const size_t reserved = 2 * static_cast<size_t>(sysconf(_SC_PAGESIZE));
        context.uc_stack.ss_sp = stack + reserved;
        context.uc_stack.ss_size = STACK_BYTES - reserved;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
};

inline void switch_stacks(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

#endif

EMULATOR_UNCHECKED inline void switch_fibers(Fiber& from, Fiber& to) {
    from.sanitizer.leave_for(to.sanitizer);
    switch_stacks(from, to);
    from.sanitizer.come_back();
}

// What a new fiber calls first.
inline void begin_fiber(Fiber& from) { from.sanitizer.learn_where_left(); }

}  // namespace emulator
