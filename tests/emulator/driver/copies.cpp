// Copies and fills. Host memory is accessed when CUDA's rules allow: pageable memory is read during the call,
// page-locked memory when the stream reaches the copy.
#include <cstring>
#include <initializer_list>

#include "call.h"
#include "memory.h"
#include "streams.h"

namespace {

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult copy_async(Context& context, void* to, const void* from, size_t bytes, Stream* handle) {
    Stream* stream = find_stream(context, handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const bool to_device = is_device_memory(context, reinterpret_cast<CUdeviceptr>(to), bytes);
    const bool from_device = is_device_memory(context, reinterpret_cast<CUdeviceptr>(from), bytes);
    const bool from_pageable = !from_device && !is_pinned(from, bytes);
    const bool to_pageable = !to_device && !is_pinned(to, bytes);
    if (from_pageable && stream->capture == nullptr) {
        const char* begin = static_cast<const char*>(from);
        auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
        enqueue(*stream, [=] { memcpy(to, staged->data(), bytes); });
    } else {
        enqueue(*stream, [=] { memmove(to, from, bytes); });
    }
    if (to_pageable && stream->capture == nullptr) finish(*stream);
    return context.error;
}

// Uses the default stream: ordered with the streams that synchronize with it, and with no others.
CUresult copy_now(Context& context, void* to, const void* from, size_t bytes) {
    const CUresult capturing = refuse_while_capturing();
    if (capturing != CUDA_SUCCESS) return capturing;
    enqueue(context.default_stream, [=] { memmove(to, from, bytes); });
    return context.error;
}

// A call that needs `bytes` of device memory at each of the addresses.
template <class Body>
CUresult checked(const char* function, std::initializer_list<CUdeviceptr> addresses, size_t bytes,
                 Body body) {
    return context_call(function, [&](Context& context) -> CUresult {
        if (bytes == 0) return CUDA_SUCCESS;
        for (CUdeviceptr address : addresses) {
            if (!is_device_memory(context, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
        }
        return body(context);
    });
}

template <class T>
CUresult fill(const char* function, CUdeviceptr to, T value, size_t count, Stream* handle) {
    return checked(function, {to}, count * sizeof(T), [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        if (to % sizeof(T) != 0) return CUDA_ERROR_INVALID_VALUE;
        enqueue(*stream, [=] { std::fill_n(static_cast<T*>(pointer(to)), count, value); });
        return context.error;
    });
}

}  // namespace

CUDA_API cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return checked("cuMemcpyHtoD_v2", {to}, bytes,
                   [&](Context& context) { return copy_now(context, pointer(to), from, bytes); });
}

CUDA_API cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return checked("cuMemcpyDtoH_v2", {from}, bytes,
                   [&](Context& context) { return copy_now(context, to, pointer(from), bytes); });
}

CUDA_API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return checked("cuMemcpyDtoD_v2", {to, from}, bytes,
                   [&](Context& context) { return copy_now(context, pointer(to), pointer(from), bytes); });
}

CUDA_API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return checked("cuMemcpy", {}, bytes,
                   [&](Context& context) { return copy_now(context, pointer(to), pointer(from), bytes); });
}

CUDA_API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, Stream* stream) {
    return checked("cuMemcpyHtoDAsync_v2", {to}, bytes,
                   [&](Context& context) { return copy_async(context, pointer(to), from, bytes, stream); });
}

CUDA_API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, Stream* stream) {
    return checked("cuMemcpyDtoHAsync_v2", {from}, bytes,
                   [&](Context& context) { return copy_async(context, to, pointer(from), bytes, stream); });
}

CUDA_API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream* stream) {
    return checked("cuMemcpyDtoDAsync_v2", {to, from}, bytes, [&](Context& context) {
        return copy_async(context, pointer(to), pointer(from), bytes, stream);
    });
}

CUDA_API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, Stream* stream) {
    return checked("cuMemcpyAsync", {}, bytes, [&](Context& context) {
        return copy_async(context, pointer(to), pointer(from), bytes, stream);
    });
}

CUDA_API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, Stream* stream) {
    return fill("cuMemsetD8Async", to, value, count, stream);
}

CUDA_API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill("cuMemsetD8_v2", to, value, count, nullptr);
}

CUDA_API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, Stream* stream) {
    return fill("cuMemsetD32Async", to, value, count, stream);
}

CUDA_API cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill("cuMemsetD32_v2", to, value, count, nullptr);
}
