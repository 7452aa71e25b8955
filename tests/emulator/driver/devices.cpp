// Devices and their primary contexts.
#include <cstdio>
#include <cstring>

#include "call.h"
#include "memory.h"
#include "streams.h"

namespace {

// Maximum shared memory of a block by compute capability, from the CUDA programming guide.
int largest_shared_bytes() {
    const Settings& settings = Settings::get();
    switch (10 * settings.major + settings.minor) {
        case 80:
        case 87: return 163 << 10;
        case 90:
        case 100:
        case 103: return 227 << 10;
        default: return 99 << 10;
    }
}

int attribute(int which) {
    const Settings& settings = Settings::get();
    switch (which) {
        case 1: return 1024;  // threads per block
        case 2:
        case 3: return 1024;  // block dimensions
        case 4: return 64;
        case 5: return 2147483647;  // grid dimensions
        case 6:
        case 7: return 65535;
        case 8: return 48 << 10;     // shared memory per block without opting in
        case 9: return 64 << 10;     // constant memory
        case 10: return 32;          // warp size
        case 11: return 2147483647;  // pitch
        case 12: return 65536;       // registers per block
        case 13: return 1000000;     // kHz
        case 14: return 512;         // texture alignment
        case 16: return 2;           // multiprocessors
        case 36: return 1000000;     // memory kHz
        case 37: return 64;          // memory bus bits
        case 38: return 4 << 20;     // L2
        case 39: return 2048;        // threads per multiprocessor
        case 40: return 2;           // copy engines
        case 75: return settings.major;
        case 76: return settings.minor;
        case 81: return largest_shared_bytes() + (1 << 10);
        case 82: return 65536;  // registers per multiprocessor
        case 97: return largest_shared_bytes();
        case 106: return 32;       // blocks per multiprocessor
        case 111: return 1 << 10;  // shared memory reserved by the system per block
        case 15:
        case 19:
        case 31:
        case 41:
        case 78:
        case 79:
        case 80:
        case 85:
        case 90:
        case 99:
        case 115: return 1;  // capabilities that every current GPU has
        default: return 0;
    }
}

bool exists(CUdevice device) {
    return device >= 0 && device < static_cast<int>(Driver::get().devices.size());
}

template <class Body>
CUresult device_call(const char* function, CUdevice device, Body body) {
    return plain_call(function, [&]() -> CUresult {
        if (!exists(device)) return CUDA_ERROR_INVALID_DEVICE;
        return body(Driver::get().devices[device]);
    });
}

CUresult uuid(CUuuid* out, CUdevice device) {
    memset(out, 0, sizeof *out);
    snprintf(out->bytes, sizeof out->bytes, "emulated %d", device);
    return CUDA_SUCCESS;
}

}  // namespace

int largest_dynamic_shared_bytes() { return largest_shared_bytes(); }

CUDA_API cuInit(unsigned flags) {
    std::lock_guard<std::recursive_mutex> lock(driver_lock());
    const CUresult planned = planned_failure("cuInit");
    if (planned != CUDA_SUCCESS) return planned;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Driver& driver = Driver::get();
    const int count = Settings::get().devices;
    if (count == 0) return CUDA_ERROR_NO_DEVICE;
    if (driver.initialised) return CUDA_SUCCESS;
    for (int i = 0; i < count; i++) {
        DeviceState& device = driver.devices.emplace_back();
        device.context.device = i;
        device.current_pool = &device.default_pool;
        device.pools = {&device.default_pool};
    }
    driver.initialised = true;
    return CUDA_SUCCESS;
}

CUDA_API cuDriverGetVersion(int* version) {
    *version = Settings::get().driver;
    return CUDA_SUCCESS;
}

// Export tables, functions beyond the API: this driver has none. NVRTC calls this wherever a driver is loaded, and
// requires the function to exist.
CUDA_API cuGetExportTable(const void**, const CUuuid*) { return CUDA_ERROR_NOT_FOUND; }

CUDA_API cuDeviceGetCount(int* count) {
    return plain_call("cuDeviceGetCount", [&] {
        *count = static_cast<int>(Driver::get().devices.size());
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceGet(CUdevice* device, int ordinal) {
    return device_call("cuDeviceGet", ordinal, [&](DeviceState&) {
        *device = ordinal;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceGetName(char* name, int length, CUdevice device) {
    return device_call("cuDeviceGetName", device, [&](DeviceState&) {
        snprintf(name, static_cast<size_t>(length), "emulated GPU");
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    return device_call("cuDeviceTotalMem_v2", device, [&](DeviceState&) {
        *bytes = Settings::get().memory;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceGetAttribute(int* value, int which, CUdevice device) {
    return device_call("cuDeviceGetAttribute", device, [&](DeviceState&) {
        *value = which == 33 ? device + 1 : attribute(which);  // 33: the PCI bus, different for each device
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDeviceGetUuid(CUuuid* out, CUdevice device) {
    return device_call("cuDeviceGetUuid", device, [&](DeviceState&) { return uuid(out, device); });
}

CUDA_API cuDeviceGetUuid_v2(CUuuid* out, CUdevice device) {
    return device_call("cuDeviceGetUuid_v2", device, [&](DeviceState&) { return uuid(out, device); });
}

CUDA_API cuDevicePrimaryCtxRetain(Context** out, CUdevice device) {
    return device_call("cuDevicePrimaryCtxRetain", device, [&](DeviceState& state) -> CUresult {
        if (state.context.retained == 0) {
            if (CONTEXT_OVERHEAD > Settings::get().memory) return CUDA_ERROR_OUT_OF_MEMORY;
            open_context(state.context);
        }
        state.context.retained++;
        *out = &state.context;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return device_call("cuDevicePrimaryCtxRelease_v2", device, [&](DeviceState& state) -> CUresult {
        if (state.context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
        if (--state.context.retained == 0) close_context(state);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return device_call("cuDevicePrimaryCtxReset_v2", device, [&](DeviceState& state) {
        if (state.context.retained > 0) close_context(state);
        return CUDA_SUCCESS;
    });
}

CUDA_API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned) {
    return device_call("cuDevicePrimaryCtxSetFlags_v2", device, [&](DeviceState&) { return CUDA_SUCCESS; });
}

CUDA_API cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return device_call("cuDevicePrimaryCtxGetState", device, [&](DeviceState& state) {
        *flags = 0;
        *active = state.context.retained > 0;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuCtxSetCurrent(Context* context) {
    return plain_call("cuCtxSetCurrent", [&] {
        current_context() = context;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuCtxGetCurrent(Context** context) {
    return plain_call("cuCtxGetCurrent", [&] {
        *context = current_context();
        return CUDA_SUCCESS;
    });
}

CUDA_API cuCtxGetDevice(CUdevice* device) {
    return plain_call("cuCtxGetDevice", [&]() -> CUresult {
        if (current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        *device = current_context()->device;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return context_call("cuCtxGetStreamPriorityRange", [&](Context&) {
        *least = 0;
        *greatest = -5;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuCtxSetFlags(unsigned) {
    return context_call("cuCtxSetFlags", [&](Context&) { return CUDA_SUCCESS; });
}

CUDA_API cuCtxSynchronize() {
    return context_call("cuCtxSynchronize", [&](Context& context) -> CUresult {
        const CUresult capturing = refuse_while_capturing();
        if (capturing != CUDA_SUCCESS) return capturing;
        for (Stream* stream : context.streams) finish(*stream);
        trim_pools(context);
        return context.error;
    });
}
