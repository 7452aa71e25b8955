// Communicators and collectives. A rank leaves its numbers in a file of the folder that the unique id names; once all
// ranks have left theirs, each reads them. All of it happens in stream order, and no call of the host waits but the
// initialisation.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "nccl.h"

struct Stream;

// From the emulated driver.
extern "C" int emulated_attempt(Stream* stream, std::function<bool()>* attempt);
extern "C" int cuCtxGetDevice(int* device);
extern "C" int cuMemAlloc_v2(unsigned long long* address, size_t bytes);
extern "C" int cuMemFree_v2(unsigned long long address);

namespace {

// NCCL 2.28.9.
constexpr int VERSION = 22809;

// Device memory of a communicator: of a size that no test mistakes for another.
constexpr size_t MEMORY = size_t{24} << 20;

constexpr int CUDA_ERROR_OUT_OF_MEMORY = 2;

std::string& last_error() {
    static thread_local std::string text;
    return text;
}

Status refuse(Status status, const std::string& reason) {
    last_error() = reason;
    return status;
}

// A status that EMULATED_FAIL plans, with the message that NCCL has for it.
Status planned(const char* function) {
    const Status status = emulated_failure(function);
    if (status == ncclUnhandledCudaError) return refuse(status, "Cuda failure 'an illegal memory access'");
    return status == ncclSuccess ? status : refuse(status, std::string(function) + " fails as planned");
}

// What running collectives use. It lives as long as they do.
struct Shared {
    Folder folder;
    int ranks, rank;
    std::atomic<bool> aborted{false};
    std::atomic<Status> state{ncclSuccess};

    Shared(std::string path, int ranks, int rank) : folder(std::move(path)), ranks(ranks), rank(rank) {}

    std::string file(uint64_t number, int of) const { return std::to_string(number) + "." + std::to_string(of); }
};

// One collective of a rank, in stream order.
struct Running {
    std::shared_ptr<Shared> shared;
    Collective collective;
    uint64_t number;  // among those of the communicator
    const unsigned char* send;
    unsigned char* receive;
    bool has_sent = false;

    size_t share() const { return collective.count * element_bytes(static_cast<int>(collective.type)); }

    size_t sent() const {
        return share() * (collective.kind == Collective::REDUCE_SCATTER ? static_cast<size_t>(shared->ranks) : 1);
    }

    // Returns whether the collective has ended.
    bool attempt() {
        if (shared->aborted || shared->state != ncclSuccess) return true;
        if (!has_sent) {
            std::string message(sizeof collective + sent(), 0);
            memcpy(message.data(), &collective, sizeof collective);
            memcpy(message.data() + sizeof collective, send, sent());
            if (!shared->folder.write(shared->file(number, shared->rank), message.data(), message.size())) {
                return fail(ncclSystemError);
            }
            has_sent = true;
        }
        for (int rank = 0; rank < shared->ranks; rank++) {
            if (!shared->folder.has(shared->file(number, rank))) return false;
        }
        std::vector<std::string> messages;
        std::vector<const unsigned char*> numbers;
        for (int rank = 0; rank < shared->ranks; rank++) {
            const std::string& message = messages.emplace_back(shared->folder.read(shared->file(number, rank)));
            Collective other;
            if (message.size() < sizeof other) return fail(ncclSystemError);
            memcpy(&other, message.data(), sizeof other);
            // NCCL would hang, or mix up numbers.
            if (!(other == collective)) return fail(ncclInvalidUsage);
        }
        for (const std::string& message : messages) {
            numbers.push_back(reinterpret_cast<const unsigned char*>(message.data()) + sizeof collective);
        }
        receive_from(numbers);
        // All ranks have read what came before: they have come to this one since.
        if (number > 0) shared->folder.remove(shared->file(number - 1, shared->rank));
        return true;
    }

private:
    bool fail(Status status) {
        shared->state = status;
        return true;
    }

    void receive_from(std::vector<const unsigned char*>& numbers) {
        const int type = static_cast<int>(collective.type);
        if (collective.kind == Collective::ALL_GATHER) {
            for (size_t rank = 0; rank < numbers.size(); rank++) {
                memcpy(receive + rank * share(), numbers[rank], share());
            }
            return;
        }
        if (collective.kind == Collective::REDUCE_SCATTER) {
            for (const unsigned char*& of_rank : numbers) of_rank += static_cast<size_t>(shared->rank) * share();
        }
        sum(type, numbers.data(), shared->ranks, collective.count, receive);
    }
};

}  // namespace

struct Communicator {
    std::shared_ptr<Shared> shared;
    uint64_t collectives = 0;
    unsigned long long memory = 0;
};

namespace {

// Whether ranges overlap other than as NCCL documents for an exchange in place.
bool overlaps_wrongly(const Running& running) {
    const auto rank = static_cast<size_t>(running.shared->rank);
    const auto ranks = static_cast<size_t>(running.shared->ranks);
    const size_t share = running.share();
    const unsigned char *send = running.send, *receive = running.receive;
    const bool gathers = running.collective.kind == Collective::ALL_GATHER;
    const size_t received = share * (gathers ? ranks : 1);
    if (send + running.sent() <= receive || receive + received <= send) return false;
    switch (running.collective.kind) {
        case Collective::ALL_REDUCE: return send != receive;
        case Collective::REDUCE_SCATTER: return receive != send + rank * share;
        default: return send != receive + rank * share;
    }
}

Status enqueue(const char* function, Communicator* communicator, const Collective& collective, const void* send,
               void* receive, Stream* stream) {
    const Status failure = planned(function);
    if (failure != ncclSuccess) return failure;
    const auto& shared = communicator->shared;
    if (shared->aborted) return refuse(ncclInvalidUsage, "the communicator was aborted");
    const bool is_float = collective.type != ncclInt8 && collective.type != ncclUint8;
    if (element_bytes(static_cast<int>(collective.type)) == 0 || (collective.kind != Collective::ALL_GATHER && !is_float)) {
        return refuse(ncclInvalidArgument, "the emulation lacks this type");
    }
    auto running = std::make_shared<Running>();
    running->shared = shared;
    running->collective = collective;
    running->send = static_cast<const unsigned char*>(send);
    running->receive = static_cast<unsigned char*>(receive);
    if (overlaps_wrongly(*running)) return refuse(ncclInvalidArgument, "the buffers overlap");
    running->number = communicator->collectives++;
    std::function<bool()> attempt = [running] { return running->attempt(); };
    const int status = emulated_attempt(stream, &attempt);
    return status == 0 ? ncclSuccess : refuse(ncclUnhandledCudaError, "Cuda failure " + std::to_string(status));
}

// Ends a communicator. The last rank removes the folder.
void end(Communicator* communicator) {
    const Shared& shared = *communicator->shared;
    if (communicator->memory != 0) cuMemFree_v2(communicator->memory);
    shared.folder.write("gone." + std::to_string(shared.rank), "", 0);
    bool all = true;
    for (int rank = 0; rank < shared.ranks; rank++) all = all && shared.folder.has("gone." + std::to_string(rank));
    if (all) shared.folder.remove_all();
    delete communicator;
}

}  // namespace

NCCL_API Status ncclGetVersion(int* version) {
    *version = VERSION;
    return planned("ncclGetVersion");
}

NCCL_API const char* ncclGetErrorString(Status status) {
    switch (status) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "unhandled cuda error";
        case ncclSystemError: return "unhandled system error";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "remote process exited or there was a network error";
        case ncclInProgress: return "NCCL operation in progress";
        default: return "unknown result code";
    }
}

NCCL_API const char* ncclGetLastError(Communicator*) { return last_error().c_str(); }

NCCL_API Status ncclGetUniqueId(UniqueId* id) {
    const Status failure = planned("ncclGetUniqueId");
    if (failure != ncclSuccess) return failure;
    const std::string path = Folder::make();
    if (path.empty() || path.size() >= sizeof id->bytes) return refuse(ncclSystemError, "no folder for the ranks");
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, path.data(), path.size());
    return ncclSuccess;
}

NCCL_API Status ncclCommInitRank(Communicator** out, int ranks, UniqueId id, int rank) {
    const Status failure = planned("ncclCommInitRank");
    if (failure != ncclSuccess) return failure;
    int device;
    if (cuCtxGetDevice(&device) != 0) return refuse(ncclUnhandledCudaError, "Cuda failure 'invalid device context'");
    auto communicator = std::make_unique<Communicator>();
    const int refused = emulated_failure("ncclCommInitRank.memory");
    const int status = refused != 0 ? refused : cuMemAlloc_v2(&communicator->memory, MEMORY);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) return refuse(ncclUnhandledCudaError, "Cuda failure 'out of memory'");
    if (status != 0) return refuse(ncclUnhandledCudaError, "Cuda failure " + std::to_string(status));
    communicator->shared = std::make_shared<Shared>(id.bytes, ranks, rank);
    const Folder& folder = communicator->shared->folder;
    const std::string own = std::to_string(device);
    folder.write("join." + std::to_string(rank), own.data(), own.size());
    for (int other = 0; other < ranks; other++) {
        const std::string name = "join." + std::to_string(other);
        while (!folder.has(name)) usleep(200);
        if (other != rank && folder.read(name) == own) {
            return refuse(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " +
                                                std::to_string(other) + " both on CUDA device " + own);
        }
    }
    *out = communicator.release();
    return ncclSuccess;
}

NCCL_API Status ncclCommGetAsyncError(Communicator* communicator, Status* state) {
    const Status failure = planned("ncclCommGetAsyncError");
    const Status async = planned("ncclCommGetAsyncError.state");
    *state = async != ncclSuccess ? async : communicator->shared->state.load();
    return failure;
}

NCCL_API Status ncclCommAbort(Communicator* communicator) {
    communicator->shared->aborted = true;
    end(communicator);
    return planned("ncclCommAbort");
}

NCCL_API Status ncclCommDestroy(Communicator* communicator) {
    end(communicator);
    return planned("ncclCommDestroy");
}

NCCL_API Status ncclAllReduce(const void* send, void* receive, size_t count, int type, int operation,
                              Communicator* communicator, Stream* stream) {
    if (operation != ncclSum) return refuse(ncclInvalidArgument, "the emulation has sums only");
    const Collective collective{Collective::ALL_REDUCE, static_cast<uint32_t>(type), count};
    return enqueue("ncclAllReduce", communicator, collective, send, receive, stream);
}

NCCL_API Status ncclReduceScatter(const void* send, void* receive, size_t count, int type, int operation,
                                  Communicator* communicator, Stream* stream) {
    if (operation != ncclSum) return refuse(ncclInvalidArgument, "the emulation has sums only");
    const Collective collective{Collective::REDUCE_SCATTER, static_cast<uint32_t>(type), count};
    return enqueue("ncclReduceScatter", communicator, collective, send, receive, stream);
}

NCCL_API Status ncclAllGather(const void* send, void* receive, size_t count, int type, Communicator* communicator,
                              Stream* stream) {
    const Collective collective{Collective::ALL_GATHER, static_cast<uint32_t>(type), count};
    return enqueue("ncclAllGather", communicator, collective, send, receive, stream);
}
