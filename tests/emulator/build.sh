#!/usr/bin/env bash
# Builds the stand-ins for the CUDA driver and cuBLASLt, with the kernels compiled in, into a folder for
# LD_LIBRARY_PATH.
# Usage: build.sh OUT_DIR [--sanitize]
#   --sanitize  with AddressSanitizer and UndefinedBehaviorSanitizer; programs then run with the LD_PRELOAD that
#               the last line of output names.
# Files are compiled again only if they, a header or this script changed. EMULATED_KERNELS names another folder of
# kernels than src/device/cuda/kernels.
set -euo pipefail

usage="usage: build.sh OUT_DIR [--sanitize]"
out=${1:?$usage}
sanitize=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
headers=$here/../../src/device/cuda/kernels
kernels=${EMULATED_KERNELS:-$headers}
cxx=${CXX:-g++}
jobs=${EMULATED_BUILD_JOBS:-2}

# Kernels say where they want fused multiply-adds, so nothing else is contracted; they read memory as several types,
# as CUDA lets them. Without the processor's own instructions fmaf would be a slow call.
flags=(-std=c++17 -O2 -march=native -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off
       -Wall -Wextra -Wno-unknown-pragmas -DEMU -I"$here" -I"$kernels" -I"$headers")
link=(-shared -pthread)
case $sanitize in
    "") ;;
    --sanitize)
        # Shared memory is thread-local, and AddressSanitizer counts each call that finds such memory in a library that is
        # loaded late: most of the time went there. Loaded first, the libraries need none.
        flags+=(-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -ftls-model=initial-exec)
        link+=(-fsanitize=address,undefined)
        ;;
    *) echo "$usage" >&2; exit 2 ;;
esac

mkdir -p "$out/objects"
out=$(cd "$out" && pwd)

# Everything that any object may depend on besides its own source, and which sources there are.
folders=("$here" "$kernels")
[ ! -d "$headers" ] || folders+=("$headers")
stamp=$({
    echo "$cxx ${flags[*]}"
    find "${folders[@]}" -name '*.c*' | sort
    find "${folders[@]}" \( -name '*.h' -o -name '*.cuh' \) -print0 | sort -z | xargs -0 cat "$0"
} | sha256sum)
if [ "$(cat "$out/objects/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -f "$out"/objects/*
    echo "$stamp" > "$out/objects/stamp"
fi

# compile SOURCE NAME: the object of a source, unless it is newer.
compile() {
    local object=$out/objects/$2.o
    [ "$object" -nt "$1" ] || { "$cxx" "${flags[@]}" -x c++ -c "$1" -o "$object.new" && mv "$object.new" "$object"; }
}
export -f compile
export cxx out
export flags_text="${flags[*]@Q}"

list_sources() {
    for source in "$here"/driver/*.cpp; do echo "$source driver_$(basename "$source" .cpp)"; done
    for source in "$here"/cublaslt/*.cpp; do echo "$source cublaslt_$(basename "$source" .cpp)"; done
    echo "$here/nvrtc/nvrtc.cpp nvrtc"
    for source in "$kernels"/*.cu; do [ -e "$source" ] && echo "$source kernel_$(basename "$source" .cu)"; done
    true
}
list_sources | xargs -P "$jobs" -L 1 bash -c 'set -e; eval "flags=($flags_text)"; compile "$1" "$2"' _

# library NAME LINK_ARGUMENT...: links a library unless it is newer than its objects.
library() {
    local file=$out/$1
    shift
    [ -e "$file" ] && [ -z "$(find "$out"/objects -name '*.o' -newer "$file")" ] && return
    "$cxx" "${link[@]}" -Wl,-soname,"$(basename "$file")" "$@" -o "$file.new" && mv "$file.new" "$file"
}
shopt -s nullglob
library libcuda.so.1 "$out"/objects/driver_*.o "$out"/objects/kernel_*.o
library libcublasLt.so.13 "$out"/objects/cublaslt_*.o -L"$out" -l:libcuda.so.1 -Wl,-rpath,'$ORIGIN'
ln -sf libcublasLt.so.13 "$out/libcublasLt.so.12"
# In a folder of its own: the real one is not to be hidden by it.
mkdir -p "$out/nvrtc"
library nvrtc/libnvrtc.so.13 "$out"/objects/nvrtc.o

if [ -n "$sanitize" ]; then
    echo "LD_PRELOAD=$("$cxx" -print-file-name=libasan.so):$("$cxx" -print-file-name=libubsan.so):$out/libcuda.so.1"
fi
