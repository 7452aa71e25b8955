// Kernels by name, and their launch with an array of pointers to arguments, as passed to `cuLaunchKernel`.
#pragma once

#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "block.h"
#include "workers.h"

namespace emulator {

struct Kernel {
    const char* name;
    void (*call)(void** arguments);
    std::vector<size_t> argument_bytes;
};

inline std::map<std::string, Kernel>& kernels() {
    static std::map<std::string, Kernel> table;
    return table;
}

template <auto function>
struct Trampoline;

template <class... Arguments, void (*function)(Arguments...)>
struct Trampoline<function> {
    static Kernel describe(const char* name) { return {name, call, {sizeof(Arguments)...}}; }

    static void call(void** arguments) { unpack(arguments, std::index_sequence_for<Arguments...>{}); }

    template <size_t... I>
    static void unpack([[maybe_unused]] void** arguments, std::index_sequence<I...>) {
        function(*static_cast<std::remove_const_t<Arguments>*>(arguments[I])...);
    }
};

struct Registration {
    explicit Registration(const Kernel& kernel) {
        if (!kernels().emplace(kernel.name, kernel).second) {
            fprintf(stderr, "emulator: two kernels are named %s\n", kernel.name);
            abort();
        }
    }
};

// Cache of blocks: they own stacks, which are kept between launches.
class SpareBlocks {
public:
    static SpareBlocks& shared() {
        static SpareBlocks* spare = new SpareBlocks();
        return *spare;
    }

    std::unique_ptr<Block> take() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (blocks_.empty()) return std::make_unique<Block>();
        std::unique_ptr<Block> block = std::move(blocks_.back());
        blocks_.pop_back();
        return block;
    }

    void give_back(std::unique_ptr<Block> block) {
        std::lock_guard<std::mutex> lock(mutex_);
        blocks_.push_back(std::move(block));
    }

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Block>> blocks_;
};

// Runs every block of a grid, one at a time on each OS thread. Returns the first error, or an empty string.
inline std::string launch(const Kernel& kernel, dim3 grid, dim3 size, size_t dynamic_bytes, void** arguments,
                          const Way& way = Way::of_environment()) {
    const size_t blocks = static_cast<size_t>(grid.x) * grid.y * grid.z;
    Workers& workers = Workers::shared();
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::string error;
    workers.run(std::min(blocks, workers.count()), [&](size_t) {
        SharedMemory shared(dynamic_bytes);
        std::unique_ptr<Block> block = SpareBlocks::shared().take();
        for (size_t i; !failed && (i = next++) < blocks;) {
            const uint3 index = {static_cast<unsigned>(i % grid.x),
                                 static_cast<unsigned>(i / grid.x % grid.y),
                                 static_cast<unsigned>(i / grid.x / grid.y)};
            if (!block->run(kernel.call, arguments, index, size, grid, shared, way)) {
                std::lock_guard<std::mutex> lock(mutex);
                if (error.empty()) error = std::string(kernel.name) + ": " + block->error();
                failed = true;
            }
        }
        SpareBlocks::shared().give_back(std::move(block));
    });
    return error;
}

}  // namespace emulator

#define REGISTER(kernel)                                       \
    static const emulator::Registration kernel##_registration{ \
        emulator::Trampoline<kernel>::describe(#kernel)};
