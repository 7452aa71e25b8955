// Execution in the order of streams and events, delayed or randomized by EMULATED_DELAY.
#pragma once

#include "state.h"

// The stream of a handle (null handles mean the default stream), or null if it does not exist.
Stream* find_stream(Context& context, Stream* handle);

// Appends work to a stream, or to the graph that the stream captures.
void enqueue(Stream& stream, std::function<void()> work);
void enqueue(Stream& stream, Operation operation);

// Runs all work of a stream, and the work that it waits for.
void finish(Stream& stream);

// Runs the work before a point.
void finish(const std::shared_ptr<Moment>& moment);

// Takes one step of a stream, or of one that it waits for. Returns whether there was one: not if other processes have to
// come first.
bool step_towards(Stream& stream);

// Success, or the error of a call that is forbidden during a capture (and invalidates the capture).
CUresult refuse_while_capturing();
CUresult invalidate(Capture& capture);

// Adds a node to a stream's capture.
void capture_work(Stream& stream, std::function<void()> work);

// A random number below `bound`, with the seed of EMULATED_DELAY.
size_t choose(size_t bound);
