/* libnvidia-ml.so.1, which PyTorch asks whether memory can be shared between machines before it makes expandable segments
   (3 is NVML_ERROR_NOT_SUPPORTED), and which processes use the card when it is out of memory. */

static char device;

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    *handle = &device;
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return 0;
}

int nvmlDeviceGetGpuFabricInfoV() { return 3; }
int nvmlDeviceGetNvLinkRemoteDeviceType() { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2() { return 3; }

int nvmlDeviceGetComputeRunningProcesses(void *of, unsigned *count, void *processes) {
    *count = 0;
    return 0;
}
