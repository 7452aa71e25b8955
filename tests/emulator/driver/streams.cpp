#include "streams.h"

#include <unistd.h>

#include <random>

#include "call.h"
#include "memory.h"

namespace {

// Whether the stream can take a step without progress of another stream.
bool can_step(const Stream& stream) {
    return !stream.queue.empty() &&
           (stream.queue.front().wait == nullptr || stream.queue.front().wait->reached);
}

// Takes a step, of another stream if this one waits for it. Returns whether there was one: not if other processes have
// to come first.
bool step(Stream& stream) {
    const Operation& next = stream.queue.front();
    if (next.wait != nullptr && !next.wait->reached) return step(*next.wait->stream);
    const bool runs = stream.context->error == CUDA_SUCCESS;
    if (next.attempt && runs && !next.attempt()) return false;
    Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    // After an error no work runs any more, but points are still marked as reached, so that no wait hangs.
    if (operation.work && runs) operation.work();
    if (operation.record != nullptr) {
        operation.record->time = std::chrono::steady_clock::now() + stream.pretended;
        operation.record->reached = true;
    }
    return true;
}

bool step_by_chance(Context& context) {
    std::vector<Stream*> able;
    for (Stream* stream : context.streams) {
        if (can_step(*stream)) able.push_back(stream);
    }
    return !able.empty() && step(*able[choose(able.size())]);
}

// Lets other processes and threads come first. Threads have contexts of their own.
void let_others_run() {
    driver_lock().unlock();
    usleep(50);
    driver_lock().lock();
}

void advance(Stream& stream) {
    if (Settings::get().delay == Settings::BY_CHANCE) {
        // Random steps in bursts, in total fewer than enqueued, so that the device lags behind the host.
        for (size_t steps = choose(8) == 0 ? choose(12) : 0; steps > 0; steps--)
            step_by_chance(*stream.context);
    } else if (!stream.put_off) {
        while (!stream.queue.empty() && step(stream)) {
        }
    }
}

template <class Body>
CUresult stream_call(const char* function, Stream* handle, Body body) {
    return context_call(function, [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        return body(*stream);
    });
}

CUresult create(const char* function, Stream** out, unsigned flags, int priority) {
    return context_call(function, [&](Context& context) {
        const Settings::Delay delay = Settings::get().delay;
        // Programs with two streams create them one after the other; one for exchanges has a higher priority.
        const bool is_ahead = priority < 0;
        const unsigned number = is_ahead ? 1 : ++context.streams_created;
        const bool put_off = delay == Settings::EVERY_STREAM || (delay == Settings::PRIORITY_STREAM && is_ahead) ||
                             (delay == Settings::FIRST_STREAM && !is_ahead && number % 2 == 1) ||
                             (delay == Settings::SECOND_STREAM && !is_ahead && number % 2 == 0);
        const bool waits_for_default = (flags & CU_STREAM_NON_BLOCKING) == 0;
        *out = new Stream{&context, number, waits_for_default, put_off, priority, {}, nullptr, {}};
        context.streams.push_back(*out);
        return CUDA_SUCCESS;
    });
}

}  // namespace

size_t choose(size_t bound) {
    static std::mt19937 chance(static_cast<unsigned>(Settings::get().delay_seed));
    return chance() % bound;
}

Stream* find_stream(Context& context, Stream* handle) {
    // CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are the addresses 1 and 2.
    if (reinterpret_cast<uintptr_t>(handle) <= 2) return &context.default_stream;
    const auto& streams = context.streams;
    return std::find(streams.begin(), streams.end(), handle) != streams.end() ? handle : nullptr;
}

void enqueue(Stream& stream, Operation operation) {
    if (stream.is_default()) {
        for (Stream* other : stream.context->streams) {
            if (other->waits_for_default) finish(*other);
        }
        stream.queue.push_back(std::move(operation));
        finish(stream);
        return;
    }
    stream.queue.push_back(std::move(operation));
    advance(stream);
}

void enqueue(Stream& stream, std::function<void()> work) {
    if (stream.capture != nullptr) {
        capture_work(stream, std::move(work));
    } else {
        enqueue(stream, Operation{std::move(work), nullptr, nullptr});
    }
}

void finish(Stream& stream) {
    while (!stream.queue.empty()) {
        if (!step_towards(stream)) let_others_run();
    }
}

void finish(const std::shared_ptr<Moment>& moment) {
    while (!moment->reached) {
        if (!step_towards(*moment->stream)) let_others_run();
    }
}

bool step_towards(Stream& stream) {
    const bool by_chance = Settings::get().delay == Settings::BY_CHANCE;
    return by_chance ? step_by_chance(*stream.context) : step(stream);
}

CUDA_API cuStreamCreate(Stream** stream, unsigned flags) {
    return create("cuStreamCreate", stream, flags, 0);
}

CUDA_API cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
    return create("cuStreamCreateWithPriority", stream, flags, priority);
}

CUDA_API cuStreamGetPriority(Stream* handle, int* priority) {
    return stream_call("cuStreamGetPriority", handle, [&](Stream& stream) {
        *priority = stream.priority;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuStreamSynchronize(Stream* handle) {
    return stream_call("cuStreamSynchronize", handle, [&](Stream& stream) -> CUresult {
        const CUresult capturing = refuse_while_capturing();
        if (capturing != CUDA_SUCCESS) return capturing;
        if (stream.is_default()) {
            enqueue(stream, Operation{});
        } else {
            finish(stream);
        }
        trim_pools(*stream.context);
        return stream.context->error;
    });
}

// Polling makes progress: a program may poll until all is done.
CUDA_API cuStreamQuery(Stream* handle) {
    return stream_call("cuStreamQuery", handle, [&](Stream& stream) -> CUresult {
        if (stream.capture != nullptr) return invalidate(*stream.capture);
        if (stream.queue.empty()) return CUDA_SUCCESS;
        step_towards(stream);
        return stream.context->error != CUDA_SUCCESS ? stream.context->error : CUDA_ERROR_NOT_READY;
    });
}

CUDA_API cuStreamDestroy_v2(Stream* handle) {
    return stream_call("cuStreamDestroy_v2", handle, [&](Stream& stream) -> CUresult {
        if (stream.is_default()) return CUDA_ERROR_INVALID_HANDLE;
        if (stream.capture != nullptr) invalidate(*stream.capture);
        finish(stream);
        auto& streams = stream.context->streams;
        streams.erase(std::find(streams.begin(), streams.end(), &stream));
        delete &stream;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuLaunchHostFunc(Stream* handle, void (*function)(void*), void* data) {
    return stream_call("cuLaunchHostFunc", handle, [&](Stream& stream) {
        enqueue(stream, [=] { function(data); });
        return CUDA_SUCCESS;
    });
}

// For the emulated libraries: enqueues work in stream order.
CUDA_API emulated_enqueue(Stream* handle, std::function<void()>* work) {
    return stream_call("emulated_enqueue", handle, [&](Stream& stream) {
        enqueue(stream, std::move(*work));
        return CUDA_SUCCESS;
    });
}

// The same for work that waits for other processes: called again until it returns true.
CUDA_API emulated_attempt(Stream* handle, std::function<bool()>* attempt) {
    return stream_call("emulated_attempt", handle, [&](Stream& stream) -> CUresult {
        if (stream.capture != nullptr) return invalidate(*stream.capture);
        enqueue(stream, Operation{nullptr, nullptr, nullptr, std::move(*attempt)});
        return CUDA_SUCCESS;
    });
}

// For running work of the emulated libraries: adds artificial run time, which delays the times of later events.
CUDA_API emulated_pretend(Stream* stream, int milliseconds) {
    // The default stream (a null pointer) keeps the host's time.
    if (stream != nullptr) stream->pretended += std::chrono::milliseconds(milliseconds);
    return CUDA_SUCCESS;
}
