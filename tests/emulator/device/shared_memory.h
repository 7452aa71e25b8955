// The shared memory of a block. It is initialised with bytes of 0xff, a NaN in every floating-point type, which exposes
// reads of uninitialised memory.
#pragma once

#include <link.h>

#include <cstdlib>
#include <cstring>

namespace emulator {

class SharedMemory {
public:
    // The dynamic part is a separate allocation of the size that the launch requested, so that sanitizers detect
    // accesses past its end.
    explicit SharedMemory(size_t dynamic_bytes)
        : dynamic_bytes_(dynamic_bytes), dynamic_(static_cast<char*>(malloc(dynamic_bytes))) {
        find_variables();
    }
    ~SharedMemory() { free(dynamic_); }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;

    char* dynamic() { return dynamic_; }

    void poison() {
        memset(dynamic_, 0xff, dynamic_bytes_);
        memset(variables_, 0xff, variables_bytes_);
    }

    bool holds(const void* pointer, size_t bytes) const {
        return within(pointer, bytes, dynamic_, dynamic_bytes_) ||
               within(pointer, bytes, variables_, variables_bytes_);
    }

private:
    static bool within(const void* pointer, size_t bytes, const char* begin, size_t length) {
        const char* p = static_cast<const char*>(pointer);
        return p >= begin && p + bytes <= begin + length;
    }

    // `__shared__` variables are thread-local variables of the OS thread that runs the block. This finds all
    // thread-local variables of the kernels' library on this thread.
    void find_variables() {
        static thread_local char one_of_them;
        // The offset from it is the same on every thread.
        static const Variables found = find_around(&one_of_them);
        variables_ = &one_of_them - found.before;
        variables_bytes_ = found.bytes;
    }

    struct Variables {
        const char* one_of_them;
        size_t before, bytes;
    };

    static Variables find_around(const char* one_of_them) {
        Variables found{one_of_them, 0, 0};
        dl_iterate_phdr(
            [](dl_phdr_info* library, size_t, void* data) {
                auto* found = static_cast<Variables*>(data);
                for (int i = 0; i < library->dlpi_phnum; i++) {
                    const auto& segment = library->dlpi_phdr[i];
                    const char* begin = static_cast<char*>(library->dlpi_tls_data);
                    if (segment.p_type == PT_TLS && begin != nullptr &&
                        within(found->one_of_them, 1, begin, segment.p_memsz)) {
                        found->before = static_cast<size_t>(found->one_of_them - begin);
                        found->bytes = segment.p_memsz;
                        return 1;
                    }
                }
                return 0;
            },
            &found);
        return found;
    }

    const size_t dynamic_bytes_;
    char* const dynamic_;
    char* variables_ = nullptr;
    size_t variables_bytes_ = 0;
};

}  // namespace emulator
