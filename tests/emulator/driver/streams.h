// Work in the order of streams and events, put off or mixed as EMULATED_DELAY says.
#pragma once

#include "state.h"

// The stream that a handle means (null handles mean the default stream), or none if it does not exist.
Stream* find_stream(Context& context, Stream* handle);

// Puts work at the end of a stream, or into the graph that the stream captures.
void enqueue(Stream& stream, std::function<void()> work);
void enqueue(Stream& stream, Operation operation);

// Runs a stream's work, and what it waits for, to the end.
void finish(Stream& stream);

// Runs what has to be done before a moment, or one step towards it.
void finish(const std::shared_ptr<Moment>& moment);
void step_towards(Stream& stream);

// Success, or the error of a call that a capture in progress does not allow (and that spoils the capture).
CUresult refuse_while_capturing();
CUresult invalidate(Capture& capture);

// Adds a node to a stream's capture.
void capture_work(Stream& stream, std::function<void()> work);

// A number below `bound` by EMULATED_DELAY's seed.
size_t choose(size_t bound);
