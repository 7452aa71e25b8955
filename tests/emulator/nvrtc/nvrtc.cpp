// An NVRTC whose compilations all fail with the status set by EMULATED_NVRTC.
#include <cstddef>
#include <cstdlib>

#define NVRTC_API extern "C" __attribute__((visibility("default")))

NVRTC_API int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}

NVRTC_API int nvrtcGetNumSupportedArchs(int* count) {
    *count = 1;
    return 0;
}

NVRTC_API int nvrtcGetSupportedArchs(int* architectures) {
    *architectures = 90;
    return 0;
}

NVRTC_API int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*,
                                 const char* const*) {
    *program = nullptr;
    return 0;
}

NVRTC_API int nvrtcCompileProgram(void*, int, const char* const*) {
    const char* code = getenv("EMULATED_NVRTC");
    return code ? atoi(code) : 6;
}

NVRTC_API int nvrtcGetProgramLogSize(void*, size_t* bytes) {
    *bytes = 1;
    return 0;
}

NVRTC_API int nvrtcGetProgramLog(void*, char* log) {
    *log = 0;
    return 0;
}

NVRTC_API int nvrtcDestroyProgram(void**) { return 0; }

NVRTC_API const char* nvrtcGetErrorString(int code) {
    return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR unknown";
}
