// The emulated interfaces as a program sees them.
#pragma once

#include "../cublaslt/cublaslt.h"
#include "../driver/cuda.h"

extern "C" {
CUresult cuInit(unsigned);
CUresult cuDeviceGetCount(int*);
CUresult cuDeviceGetName(char*, int, CUdevice);
CUresult cuDeviceGetAttribute(int*, int, CUdevice);
CUresult cuDevicePrimaryCtxRetain(void**, CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuCtxSetCurrent(void*);
CUresult cuCtxSynchronize();
CUresult cuStreamCreate(void**, unsigned);
CUresult cuStreamSynchronize(void*);
CUresult cuStreamQuery(void*);
CUresult cuStreamWaitEvent(void*, void*, unsigned);
CUresult cuStreamBeginCapture_v2(void*, int);
CUresult cuStreamEndCapture(void*, void**);
CUresult cuStreamIsCapturing(void*, int*);
CUresult cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
CUresult cuGraphGetNodes(void*, void**, size_t*);
CUresult cuGraphLaunch(void*, void*);
CUresult cuGraphDestroy(void*);
CUresult cuGraphExecDestroy(void*);
CUresult cuEventCreate(void**, unsigned);
CUresult cuEventRecord(void*, void*);
CUresult cuEventQuery(void*);
CUresult cuEventSynchronize(void*);
CUresult cuEventElapsedTime(float*, void*, void*);
CUresult cuMemGetInfo_v2(size_t*, size_t*);
CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemPoolCreate(void**, const CUmemPoolProps*);
CUresult cuMemPoolDestroy(void*);
CUresult cuMemPoolGetAttribute(void*, int, void*);
CUresult cuMemPoolSetAttribute(void*, int, void*);
CUresult cuMemPoolTrimTo(void*, size_t);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr*, size_t, void*, void*);
CUresult cuMemFreeAsync(CUdeviceptr, void*);
CUresult cuMemHostAlloc(void**, size_t, unsigned);
CUresult cuMemFreeHost(void*);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void*, size_t);
CUresult cuMemcpyDtoH_v2(void*, CUdeviceptr, size_t);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr, const void*, size_t, void*);
CUresult cuMemcpyDtoHAsync_v2(void*, CUdeviceptr, size_t, void*);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, size_t, void*);
CUresult cuMemsetD32Async(CUdeviceptr, unsigned, size_t, void*);
CUresult cuModuleLoadData(void**, const void*);
CUresult cuModuleUnload(void*);
CUresult cuModuleGetFunction(void**, void*, const char*);
CUresult cuFuncSetAttribute(void*, int, int);
CUresult cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                        void**, void**);
CUresult cuGetErrorName(CUresult, const char**);
CUresult emulated_delay(const char*);
CUresult emulated_way(int, const char*, const char*);

Status cublasLtCreate(void**);
Status cublasLtDestroy(void*);
Status cublasLtMatmulAlgoGetHeuristic(void*, const Description*, const Layout*, const Layout*, const Layout*,
                                      const Layout*, const Preference*, int, HeuristicResult*, int*);
Status cublasLtMatmulAlgoCheck(void*, const Description*, const Layout*, const Layout*, const Layout*,
                               const Layout*, const Algorithm*, HeuristicResult*);
Status cublasLtMatmul(void*, const Description*, const float*, const void*, const Layout*, const void*,
                      const Layout*, const float*, const void*, const Layout*, void*, const Layout*,
                      const Algorithm*, void*, size_t, void*);
}
