// The part of NCCL's interface that the emulation implements, with the library's constants, and its communicators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

using Status = int;

enum : Status {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
};

enum : int { ncclInt8 = 0, ncclUint8 = 1, ncclFloat16 = 6, ncclFloat32 = 7, ncclBfloat16 = 9 };

enum : int { ncclSum = 0 };

struct UniqueId {
    char bytes[128];
};

// What a rank exchanges. Ranks must agree on all of it.
struct Collective {
    enum Kind : uint32_t { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER };

    Kind kind;
    uint32_t type;
    uint64_t count;  // elements of a share, or of the whole in an all-reduce

    bool operator==(const Collective& other) const {
        return kind == other.kind && type == other.type && count == other.count;
    }
};

size_t element_bytes(int type);  // 0 for a type that the emulation lacks

// Adds numbers of a floating-point type in the order of ranks, in f32, and rounds once: the same bits each time.
void sum(int type, const unsigned char* const* addends, int ranks, size_t count, unsigned char* sums);

// A folder in which the ranks, processes or threads, leave files for each other.
class Folder {
public:
    explicit Folder(std::string path) : path(std::move(path)) {}

    // Makes a new folder, and removes those of processes that have ended.
    static std::string make();

    bool has(const std::string& name) const;
    bool write(const std::string& name, const void* bytes, size_t count) const;  // all at once, for readers
    std::string read(const std::string& name) const;
    void remove(const std::string& name) const;
    void remove_all() const;

    const std::string path;
};

// From the emulated driver: the failure that EMULATED_FAIL plans for this call of a function, or success.
extern "C" int emulated_failure(const char* function);

#define NCCL_API extern "C" __attribute__((visibility("default")))
