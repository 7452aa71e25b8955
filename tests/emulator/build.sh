#!/usr/bin/env bash
# Builds the emulated CUDA driver, with the kernels compiled in, cuBLASLt, NCCL and NVRTC into a folder for LD_LIBRARY_PATH.
# Usage: build.sh OUT_DIR [--sanitize]
#   --sanitize  with AddressSanitizer and UndefinedBehaviorSanitizer; the last line of output is the value of LD_PRELOAD
#               that programs then require.
# A file is recompiled only if its contents, an included header or the options changed (compared by digest, not time).
# EMULATED_KERNELS: a folder of kernels instead of src/device/cuda/kernels.
set -euo pipefail

usage="usage: build.sh OUT_DIR [--sanitize]"
out=${1:?$usage}
sanitize=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
headers=$here/../../src/device/cuda/kernels
kernels=${EMULATED_KERNELS:-$headers}
cxx=${CXX:-g++}
jobs=${EMULATED_BUILD_JOBS:-2}

# Kernels request fused multiply-adds explicitly, so contraction is off; they access memory as several types, as CUDA
# allows (no strict aliasing). Without -march=native, fmaf would be a slow call.
flags=(-std=c++17 -O2 -march=native -fPIC -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off
       -Wall -Wextra -Wno-unknown-pragmas -DEMU -I"$here" -I"$kernels" -I"$headers")
link=(-shared -pthread)
unchecked=(-O2)
case $sanitize in
    "") ;;
    --sanitize)
        # Shared memory is thread-local. In a library that is loaded late, AddressSanitizer intercepts each lookup of
        # thread-local memory, which took most of the run time; preloaded libraries use the initial-exec model and need
        # no lookup. Half of the compile time went into pointer checks before accesses, which AddressSanitizer checks
        # anyway, and into names of variables: for its messages, line numbers suffice.
        unchecked+=(-fno-sanitize=all)
        flags+=(-g1 -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -ftls-model=initial-exec
                -fno-sanitize=null,object-size,pointer-overflow,nonnull-attribute,returns-nonnull-attribute,vptr)
        link+=(-fsanitize=address,undefined)
        ;;
    *) echo "$usage" >&2; exit 2 ;;
esac

mkdir -p "$out/objects"
out=$(cd "$out" && pwd)

# digest NAME OPTION...: digest of all inputs of an object, from its dependency file; nothing if the object is missing.
digest() {
    local list=$out/objects/$1.d files
    [ -e "$out/objects/$1.o" ] && [ -e "$list" ] || return 0
    files=$(sed 's/^[^:]*://; s/\\$//' "$list")
    # A missing input makes the object out of date, too.
    { echo "$cxx ${flags[*]} ${*:2}" && cat $files 2>&1; } | sha256sum
}

# compile SOURCE NAME OPTION...: compiles a source, unless its object is up to date.
compile() {
    local object=$out/objects/$2 options=("${@:3}")
    local made
    made=$(digest "$2" "${options[@]}")
    [ -z "$made" ] || [ "$made" != "$(cat "$object.made" 2>/dev/null)" ] || return 0
    "$cxx" "${flags[@]}" "${options[@]}" -MMD -MF "$object.d" -x c++ -c "$1" -o "$object.o.new"
    mv "$object.o.new" "$object.o"
    digest "$2" "${options[@]}" > "$object.made"
}
export -f digest compile
export cxx out
export flags_text="${flags[*]@Q}"

list_sources() {
    echo "$here/arithmetic.cpp arithmetic ${unchecked[*]}"
    for source in "$here"/driver/*.cpp; do echo "$source driver_$(basename "$source" .cpp)"; done
    for source in "$here"/cublaslt/*.cpp; do echo "$source cublaslt_$(basename "$source" .cpp)"; done
    for source in "$here"/nccl/*.cpp; do echo "$source nccl_$(basename "$source" .cpp)"; done
    echo "$here/nvrtc/nvrtc.cpp nvrtc"
    for source in "$kernels"/*.cu; do [ -e "$source" ] && echo "$source kernel_$(basename "$source" .cu)"; done
    true
}
sources=$(list_sources)
# Removes objects without a source, so that they are not linked.
for object in "$out"/objects/*.o; do
    [[ $sources =~ \ $(basename "$object" .o)($'\n'|\ |$) ]] || rm -f "${object%.o}".* "$out"/lib*
done
xargs -P "$jobs" -L 1 bash -c 'set -e; eval "flags=($flags_text)"; compile "$@"' _ <<<"$sources"

# library NAME LINK_ARGUMENT...: links a library unless it is newer than its objects.
library() {
    local file=$out/$1
    shift
    [ -e "$file" ] && [ -z "$(find "$out"/objects -name '*.o' -newer "$file")" ] && return
    "$cxx" "${link[@]}" -Wl,-soname,"$(basename "$file")" "$@" -o "$file.new" && mv "$file.new" "$file"
}
shopt -s nullglob
library libcuda.so.1 "$out"/objects/arithmetic.o "$out"/objects/driver_*.o "$out"/objects/kernel_*.o
library libcublasLt.so.13 "$out"/objects/arithmetic.o "$out"/objects/cublaslt_*.o -L"$out" -l:libcuda.so.1 -Wl,-rpath,'$ORIGIN'
library libnccl.so.2 "$out"/objects/nccl_*.o -L"$out" -l:libcuda.so.1 -Wl,-rpath,'$ORIGIN'
ln -sf libcublasLt.so.13 "$out/libcublasLt.so.12"
# In a separate folder, so that it does not hide the real NVRTC.
mkdir -p "$out/nvrtc"
library nvrtc/libnvrtc.so.13 "$out"/objects/nvrtc.o

if [ -n "$sanitize" ]; then
    echo "LD_PRELOAD=$("$cxx" -print-file-name=libasan.so):$("$cxx" -print-file-name=libubsan.so):$out/libcuda.so.1"
fi
