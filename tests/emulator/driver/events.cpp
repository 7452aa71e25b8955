// Events: points in a stream that other streams and the host wait for.
#include "call.h"
#include "streams.h"

namespace {

template <class Body>
CUresult event_call(const char* function, Event* event, Body body) {
    return context_call(function, [&](Context& context) -> CUresult {
        if (Driver::get().events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
        return body(context);
    });
}

CUresult record(const char* function, Event* event, Stream* handle) {
    return event_call(function, event, [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        event->capture = stream->capture;
        if (stream->capture != nullptr) {
            event->captured_after = stream->captured_after;
            return CUDA_SUCCESS;
        }
        event->last = std::make_shared<Moment>();
        event->last->stream = stream;
        enqueue(*stream, Operation{nullptr, event->last, nullptr});
        return CUDA_SUCCESS;
    });
}

// A stream that waits for a captured event joins the capture.
CUresult wait_in_capture(Stream& stream, const Event& event) {
    if (event.capture == nullptr) {
        if (event.last == nullptr) return CUDA_SUCCESS;
        invalidate(*stream.capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (stream.capture != nullptr && stream.capture != event.capture) {
        invalidate(*stream.capture);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    stream.capture = event.capture;
    for (size_t node : event.captured_after) stream.captured_after.push_back(node);
    return CUDA_SUCCESS;
}

CUresult elapsed(const char* function, float* milliseconds, Event* begin, Event* end) {
    return event_call(function, begin, [&](Context&) -> CUresult {
        if (Driver::get().events.count(end) == 0) return CUDA_ERROR_INVALID_HANDLE;
        if (!begin->timed || !end->timed || !begin->last || !end->last) return CUDA_ERROR_INVALID_HANDLE;
        if (!begin->last->reached || !end->last->reached) return CUDA_ERROR_NOT_READY;
        const std::chrono::duration<float, std::milli> between = end->last->time - begin->last->time;
        *milliseconds = between.count();
        return CUDA_SUCCESS;
    });
}

}  // namespace

CUDA_API cuEventCreate(Event** event, unsigned flags) {
    return context_call("cuEventCreate", [&](Context& context) {
        *event = new Event{&context, (flags & CU_EVENT_DISABLE_TIMING) == 0, nullptr, nullptr, {}};
        Driver::get().events.insert(*event);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuEventDestroy_v2(Event* event) {
    return event_call("cuEventDestroy_v2", event, [&](Context&) {
        Driver::get().events.erase(event);
        delete event;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuEventRecord(Event* event, Stream* stream) { return record("cuEventRecord", event, stream); }

CUDA_API cuEventRecordWithFlags(Event* event, Stream* stream, unsigned) {
    return record("cuEventRecordWithFlags", event, stream);
}

CUDA_API cuStreamWaitEvent(Stream* handle, Event* event, unsigned) {
    return event_call("cuStreamWaitEvent", event, [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture != nullptr || event->capture != nullptr) return wait_in_capture(*stream, *event);
        if (event->last != nullptr && !event->last->reached) {
            enqueue(*stream, Operation{nullptr, nullptr, event->last});
        }
        return CUDA_SUCCESS;
    });
}

CUDA_API cuEventSynchronize(Event* event) {
    return event_call("cuEventSynchronize", event, [&](Context& context) -> CUresult {
        if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
        if (event->last != nullptr) finish(event->last);
        return context.error;
    });
}

// Polling makes progress: a program may poll until the event is reached.
CUDA_API cuEventQuery(Event* event) {
    return event_call("cuEventQuery", event, [&](Context& context) -> CUresult {
        if (event->capture != nullptr) return CUDA_ERROR_CAPTURED_EVENT;
        if (event->last == nullptr || event->last->reached) return CUDA_SUCCESS;
        step_towards(*event->last->stream);
        return context.error != CUDA_SUCCESS ? context.error : CUDA_ERROR_NOT_READY;
    });
}

CUDA_API cuEventElapsedTime(float* milliseconds, Event* begin, Event* end) {
    return elapsed("cuEventElapsedTime", milliseconds, begin, end);
}

CUDA_API cuEventElapsedTime_v2(float* milliseconds, Event* begin, Event* end) {
    return elapsed("cuEventElapsedTime_v2", milliseconds, begin, end);
}
