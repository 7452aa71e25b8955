#!/usr/bin/env bash
# Builds libnullcuda.so, libcuda.so.1 and libnvidia-ml.so.1 for a Python with PyTorch's CUDA build: bash build.sh PYTHON FOLDER
set -euo pipefail
[ $# = 2 ] || { echo "usage: bash build.sh PYTHON FOLDER" >&2; exit 1; }
sources=$(cd "$(dirname "$0")" && pwd)
python=$1 out=$2
mkdir -p "$out"
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The headers of PyTorch's dependencies. Those of the CUDA runtime lack the folder crt, which Triton brings.
include() { dirname "$(find "$packages/nvidia" -name "$1" -print -quit)"; }
headers=(-isystem "$(include cuda_runtime_api.h)" -isystem "$(include cublas_v2.h)"
    -isystem "$packages/triton/backends/nvidia/include")
# Before PyTorch 2.15, `nv/target` is in a package of its own: nvidia-cuda-cccl.
cccl=$(find "$packages/nvidia" -path '*/nv/target' -print -quit)
headers+=(-isystem "${cccl%/nv/target}")

undefined() { nm -D --undefined-only "$@" 2>/dev/null | sed -n 's/^ *U \([A-Za-z0-9_]*\).*/\1/p' | sort -u; }
defined() { nm --defined-only "$@" | sed -n 's/.* T \(.*\)/\1/p' | sort -u; }

# Functions that are called by PyTorch and not defined here return success. NULLCUDA_LOG prints the name at the first call:
# read it when a program fails or a new version of PyTorch comes.
stubs() {
    printf '%s\n' '#include <stdio.h>' '#include <stdlib.h>' \
        '#define STUB(NAME) int NAME() { static int calls; \' \
        '    if (!calls++ && getenv("NULLCUDA_LOG")) fprintf(stderr, "nullcuda: " #NAME "\n"); return 0; }'
    sed 's/.*/STUB(&)/'
}

for source in cards memory virtual_memory runtime kernels blas; do
    g++ -std=c++20 -O1 -fPIC -Wall -Wextra "${headers[@]}" -c "$sources/$source.cpp" -o "$work/$source.o"
done
libraries=("$packages"/torch/lib/lib{c10_cuda,torch_cuda,torch_cuda_linalg,torch_python}.so)
undefined "${libraries[@]}" | grep -E '^(_*cuda|cublas)' | comm -23 - <(defined "$work"/*.o) | stubs >"$work/stubs.c"
gcc -O1 -fPIC -w -c "$work/stubs.c" -o "$work/stubs.o"
g++ -shared "$work"/*.o -o "$out/libnullcuda.so"

gcc -O1 -fPIC -w -c "$sources/driver.c" -o "$work/driver.o"
undefined "$packages/torch/lib/libcaffe2_nvrtc.so" | grep -E '^cu[A-Z]' | comm -23 - <(defined "$work/driver.o") |
    stubs >"$work/driver_stubs.c"
gcc -O1 -fPIC -w -shared -Wl,-soname,libcuda.so.1 "$work/driver.o" "$work/driver_stubs.c" -o "$out/libcuda.so.1"

gcc -O1 -fPIC -w -shared -Wl,-soname,libnvidia-ml.so.1 "$sources/nvml.c" -o "$out/libnvidia-ml.so.1"
