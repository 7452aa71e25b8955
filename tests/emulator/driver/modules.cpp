// Modules, functions and launches. Module images are ignored: kernels are found by name among those compiled into this
// library.
#include <cstdio>
#include <cstring>

#include "../emulator.h"
#include "call.h"
#include "memory.h"
#include "streams.h"

namespace {

// Static shared memory counts too. Its size is unknown to the emulator, so every kernel is assumed to have some.
constexpr int STATIC_SHARED = 64;
constexpr int SHARED_WITHOUT_OPT_IN = (48 << 10) - STATIC_SHARED;

struct Function {
    const emulator::Kernel* kernel;
    std::weak_ptr<const char> module;
    int most_dynamic_shared = SHARED_WITHOUT_OPT_IN;
};

struct Module {
    std::map<std::string, Function> functions;
    std::shared_ptr<const char> loaded = std::make_shared<const char>();
};

std::set<Module*>& modules() {
    static auto* modules = new std::set<Module*>();
    return *modules;
}

bool exists(const Function* function) {
    for (const Module* module : modules()) {
        for (const auto& [name, candidate] : module->functions) {
            if (&candidate == function) return true;
        }
    }
    return false;
}

CUresult load(const char* function, Module** module, const void* image) {
    return context_call(function, [&](Context&) -> CUresult {
        if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *module = new Module();
        modules().insert(*module);
        return CUDA_SUCCESS;
    });
}

template <class Body>
CUresult function_call(const char* name, Function* function, Body body) {
    return context_call(name, [&](Context& context) -> CUresult {
        if (!exists(function)) return CUDA_ERROR_INVALID_HANDLE;
        return body(context);
    });
}

// Arguments of a launch are copied during the call: the caller may then reuse their memory.
struct Arguments {
    std::vector<std::vector<unsigned char>> values;

    Arguments(const emulator::Kernel& kernel, void** parameters) {
        for (size_t i = 0; i < kernel.argument_bytes.size(); i++) {
            const auto* bytes = static_cast<unsigned char*>(parameters[i]);
            values.emplace_back(bytes, bytes + kernel.argument_bytes[i]);
        }
    }

    std::vector<void*> pointers() {
        std::vector<void*> pointers;
        for (auto& value : values) pointers.push_back(value.data());
        return pointers;
    }
};

bool is_launchable(const Function& function, dim3 grid, dim3 block, unsigned shared, void** parameters) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647 || grid.y > 65535 ||
        grid.z > 65535) {
        return false;
    }
    const auto threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64) return false;
    if (shared > static_cast<unsigned>(function.most_dynamic_shared)) return false;
    const size_t arguments = function.kernel->argument_bytes.size();
    if (arguments > 0 && parameters == nullptr) return false;
    for (size_t i = 0; i < arguments; i++) {
        if (parameters[i] == nullptr) return false;
    }
    return true;
}

}  // namespace

CUDA_API cuModuleLoadData(Module** module, const void* image) {
    return load("cuModuleLoadData", module, image);
}

CUDA_API cuModuleLoadDataEx(Module** module, const void* image, unsigned, int*, void**) {
    return load("cuModuleLoadDataEx", module, image);
}

CUDA_API cuModuleUnload(Module* module) {
    return context_call("cuModuleUnload", [&](Context&) -> CUresult {
        if (modules().erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
        delete module;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuModuleGetFunction(Function** function, Module* module, const char* name) {
    return context_call("cuModuleGetFunction", [&](Context&) -> CUresult {
        if (modules().count(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
        const auto found = emulator::kernels().find(name);
        if (found == emulator::kernels().end()) return CUDA_ERROR_NOT_FOUND;
        *function = &module->functions.emplace(name, Function{&found->second, module->loaded}).first->second;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuFuncGetName(const char** name, Function* function) {
    return function_call("cuFuncGetName", function, [&](Context&) {
        *name = function->kernel->name;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuFuncSetAttribute(Function* function, int attribute, int value) {
    return function_call("cuFuncSetAttribute", function, [&](Context&) -> CUresult {
        switch (attribute) {
            case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
                if (value < 0 || value > largest_dynamic_shared_bytes()) return CUDA_ERROR_INVALID_VALUE;
                function->most_dynamic_shared = value;
                return CUDA_SUCCESS;
            case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return CUDA_SUCCESS;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
    });
}

CUDA_API cuFuncSetCacheConfig(Function* function, int) {
    return function_call("cuFuncSetCacheConfig", function, [&](Context&) { return CUDA_SUCCESS; });
}

// Registers, register spills and static shared memory depend on the GPU compiler: these values are artificial.
CUDA_API cuFuncGetAttribute(int* value, int attribute, Function* function) {
    return function_call("cuFuncGetAttribute", function, [&](Context&) -> CUresult {
        const Settings& settings = Settings::get();
        switch (attribute) {
            case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
            case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
            case CU_FUNC_ATTRIBUTE_PTX_VERSION:
            case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = 10 * settings.major + settings.minor; break;
            case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
                *value = function->most_dynamic_shared;
                break;
            default: *value = 0;
        }
        return CUDA_SUCCESS;
    });
}

CUDA_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads, size_t) {
    return function_call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, [&](Context&) -> CUresult {
        if (threads <= 0 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
        *blocks = 2048 / threads;
        return CUDA_SUCCESS;
    });
}

CUDA_API cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        Stream* handle, void** parameters, void** extra) {
    return function_call("cuLaunchKernel", function, [&](Context& context) -> CUresult {
        Stream* stream = find_stream(context, handle);
        if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        const dim3 grid(grid_x, grid_y, grid_z), block(block_x, block_y, block_z);
        if (extra != nullptr || !is_launchable(*function, grid, block, shared_bytes, parameters)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (stream->capture != nullptr) stream->capture->graph.modules.push_back(function->module);
        const emulator::Kernel& kernel = *function->kernel;
        auto arguments = std::make_shared<Arguments>(kernel, parameters);
        enqueue(*stream, [=, &kernel, &context, way = calling_thread().way] {
            const std::string error =
                emulator::launch(kernel, grid, block, shared_bytes, arguments->pointers().data(), way);
            if (!error.empty()) {
                fprintf(stderr, "emulated GPU: %s\n", error.c_str());
                context.error = CUDA_ERROR_LAUNCH_FAILED;
            }
        });
        return CUDA_SUCCESS;
    });
}
