// Fibers: stacks that one OS thread switches between. Each CUDA thread runs on one, so that it can stop in the middle
// of a kernel (at a barrier, in a shuffle) until the others have arrived.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Excludes the scheduler's functions from sanitizers, which would take most of its time. They can only fail through
// errors of the emulator itself.
#define EMULATOR_UNCHECKED __attribute__((no_sanitize("address", "undefined")))

namespace emulator {

// Stacks are aligned to their size, so that the data of the running thread can be found from any address on its stack
// (`stack_data`): it lies above the start of the stack. Thread-local variables would not work: they belong to OS
// threads, and are slow in libraries.
constexpr size_t STACK_BYTES = 256 << 10, DATA_BYTES = 128;

// The offset differs between stacks: data at equal offsets of many stacks would compete for few cache lines.
EMULATOR_UNCHECKED inline void* data_of(const void* on_stack) {
    const uintptr_t stack = reinterpret_cast<uintptr_t>(on_stack) & ~(STACK_BYTES - 1);
    return reinterpret_cast<void*>(stack + STACK_BYTES - DATA_BYTES - stack / STACK_BYTES % 64 * 576);
}

EMULATOR_UNCHECKED inline void* stack_data() { return data_of(__builtin_frame_address(0)); }

// Stacks outlive blocks: mapping one costs more than running a small block.
class Stacks {
public:
    ~Stacks() {
        while (free_ != nullptr) munmap(take(), STACK_BYTES);
    }

    EMULATOR_UNCHECKED char* take() {
        if (free_ == nullptr) return map();
        char* stack = free_;
        free_ = *next(stack);
        return stack;
    }

    EMULATOR_UNCHECKED void give_back(char* stack) {
        *next(stack) = free_;
        free_ = stack;
    }

    // Returns the stack of a thread that did not return from its functions, whose variables are still poisoned.
    void give_back_abandoned(char* stack) {
#if defined(__SANITIZE_ADDRESS__)
        __asan_unpoison_memory_region(stack + page(), STACK_BYTES - page());
#endif
        give_back(stack);
    }

private:
    // A free stack stores the pointer to the next free one.
    EMULATOR_UNCHECKED static char** next(char* stack) { return static_cast<char**>(data_of(stack)); }

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
        // Guard page: a stack overflow faults here instead of overwriting other data.
        if (mprotect(stack, page(), PROT_NONE) != 0) give_up();
        return stack;
    }

    [[noreturn]] static void give_up() {
        perror("emulator: no memory for the stack of a thread");
        abort();
    }

    char* free_ = nullptr;
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

// Saves the callee-saved registers, then switches stacks.
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
        // `entry` starts as if called: with a return address above it, and the six saved registers below.
        void** top = static_cast<void**>(data_of(stack));
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
        const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        context.uc_stack.ss_sp = stack + guard;
        context.uc_stack.ss_size = static_cast<size_t>(static_cast<char*>(data_of(stack)) - stack) - guard;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
};

inline void switch_stacks(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

#endif

// First call of a new fiber, after another fiber announced the switch.
inline void begin_fiber(Fiber& from) { from.sanitizer.learn_where_left(); }

}  // namespace emulator
