#!/usr/bin/env bash
# Tests the emulated CUDA stack itself: it detects errors, and accepts correct programs.
# Usage: selftest.sh [BUILD_DIR]      default: a temporary folder
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-}
if [ -z "$out" ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
out=$(cd "$out" && pwd)
cxx=${CXX:-g++}
flags=(-std=c++17 -O2 -march=native -fno-strict-aliasing -ffp-contract=off -Wall -Wextra -DEMU -pthread
       -I"$here" -I"$here/../../src/device/cuda/kernels")
stand_ins=(-L"$out/stack" -l:libcublasLt.so.13 -l:libcuda.so.1 -Wl,-rpath,"$out/stack")

EMULATED_KERNELS=$here/selftest "$here/build.sh" "$out/stack"
arithmetic=$out/stack/objects/arithmetic.o
{
    echo "kernels.cpp $arithmetic -o $out/kernels"
    echo "kernels.cpp $arithmetic -o $out/kernels-sanitized -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    for program in streams driver products; do echo "$program.cpp -o $out/$program ${stand_ins[*]}"; done
} | while read -r source options; do echo "${flags[*]} $here/selftest/$source $options"; done |
    xargs -P 2 -L 1 "$cxx"

failures=0
failed() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# passes NAME COMMAND...
passes() {
    local name=$1
    shift
    if "$@"; then echo "ok: $name"; else failed "$name"; fi
}

for order in 0 1 2 3; do
    passes "kernels, thread order $order" env EMULATED_ORDER=$order "$out/kernels"
done
# Threads ended by an error are not unwound, so their memory leaks.
export ASAN_OPTIONS=detect_leaks=0
for order in 0 1 2; do
    passes "kernels under sanitizers, thread order $order" env EMULATED_ORDER=$order "$out/kernels-sanitized"
done

# is_found KERNEL WORDS: the sanitizers stop a run of the wrong kernel with a message that contains these words.
is_found() {
    local output
    if output=$("$out/kernels-sanitized" "$1" 2>&1); then return 1; fi
    grep -q "$2" <<< "$output"
}
passes "out of bounds is found" is_found runs_out_of_bounds heap-buffer-overflow
passes "out of dynamic shared memory is found" is_found reads_unset_dynamic_shared heap-buffer-overflow
passes "a misaligned vector is found" is_found loads_misaligned_vector "misaligned address"

# For each program without a required event or wait: the delays under which it gave at least one wrong number.
declare -A found
for delay in none compute copy all random:1 random:2 random:3 random:4; do
    if wrong=$(EMULATED_DELAY=$delay "$out/streams"); then
        echo "ok: streams, delay $delay: steps wrong for want of an event: $wrong"
    else
        failed "streams, delay $delay"
        continue
    fi
    number=0
    for steps in $wrong; do
        number=$((number + 1))
        [ "$delay" != none ] || [ "$steps" = 0 ] || failed "without delays, program $number was wrong by itself"
        kind=${delay%%:*}
        [ "$steps" = 0 ] || found[$number]+=" $kind"
    done
done
# expect_found NUMBER DELAY WHAT
expect_found() {
    case " ${found[$1]:-} " in
        *" $2 "*) echo "ok: delay $2 shows $3" ;;
        *) failed "delay $2 did not show $3" ;;
    esac
}
expect_found 1 copy "computing ahead of the upload"
expect_found 2 compute "uploading ahead of the computation"
expect_found 3 all "reusing the staging buffer"
expect_found 4 compute "downloading ahead of the computation"
expect_found 5 copy "an event that a graph lacks"
for number in 1 2 3 4 5; do expect_found $number random "mistake $number by chance"; done

passes "memory, launches, captures" env EMULATED_MEMORY=$((256 << 20)) EMULATED_POOL_STEP=$((2 << 20)) \
    "$out/driver" memory 2> "$out/messages"
grep -q "emulated GPU: diverges_at_barrier: divergent __syncthreads" "$out/messages" ||
    failed "the message of a wrong kernel: $(cat "$out/messages")"
passes "steps of a pool" "$out/driver" pool_steps
# ends_with WORDS PROGRAM: the emulated driver aborts a program of the driver test with these words.
ends_with() {
    local output
    if output=$("$out/driver" "$2" 2>&1); then return 1; fi
    grep -q "$1" <<< "$output"
}
for call in launch destroy; do
    passes "a graph without its module is found at its $call" ends_with "an unloaded module" "unloads_before_$call"
done
passes "planned failures" env EMULATED_FAIL=cuMemAlloc_v2:2:2,cuLaunchKernel:1:700 "$out/driver" planned_failures
passes "ways of threads" "$out/driver" ways
passes "devices" env EMULATED_DEVICES=2 EMULATED_CAPABILITY=8.6 "$out/driver" devices
passes "no device" env EMULATED_DEVICES=0 "$out/driver" no_device
for delay in none compute; do
    passes "products, delay $delay" env EMULATED_DELAY=$delay "$out/products"
done

[ "$failures" = 0 ] || { echo "$failures failures" >&2; exit 1; }
