#!/usr/bin/env bash
# Tests of the CUDA device without a card: compiles kernels with NVRTC, and runs the program on the emulated stack of
# tests/emulator.
#
#     bash tests/cuda.sh              every part
#     bash tests/cuda.sh PART...      selected parts: registers, compile, emulator, device, kernels, engine, sweep
#     bash tests/cuda.sh gate         the minimum for a change: see `gate` below
#     bash tests/cuda.sh lock         updates src/device/cuda/registers.lock
#
# Needs g++, python3 and, for the first run, PyPI to install NVRTC. All output is in target/emulated.
# RUNNER_TEST_FULL=1 adds the engine's program tests, which also run on the CPU device.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/target/emulated
registers_lock=$PWD/src/device/cuda/registers.lock
digest_file=tests/cuda.digest
parts=(registers emulator device engine sweep kernels compile)

# environment NAME REQUIREMENT: creates a Python environment with NVRTC, which needs neither a driver nor a card.
environment() {
    local folder=$out/$1
    if [ "$(cat "$folder/fetched" 2>/dev/null)" != "$2" ]; then
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet "$2"
        echo "$2" >"$folder/fetched"
    fi
}

# Builds all test binaries and the program. Always all: another selection of crates would enable other features of their
# dependencies and recompile them.
build() {
    cargo test --quiet --release --no-run
}

# test_binary TARGET: prints the test binary of `cuda`, or of the crate `device` or `execute`.
test_binary() {
    cargo test --quiet --release --no-run --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1] and message["profile"]["test"]:
        print(message["executable"])
' "$1"
}

# run_tests COUNT TARGET ARGUMENT...: runs the tests, including ignored ones, on the emulated stack. COUNT is the
# expected number: a filter without matches fails.
run_tests() {
    local count=$1 binary passed
    binary=$(test_binary "$2")
    # No leak detection: the test process ends with its device. No fake stacks: fibers have their own. A small
    # quarantine: cases share no memory.
    local options=detect_leaks=0:detect_stack_use_after_return=0:quarantine_size_mb=32
    env LD_LIBRARY_PATH="${stack:-$out}" ${preload:+"$preload"} ASAN_OPTIONS=$options \
        "$binary" --include-ignored --quiet "${@:3}" | tee "$out/tests.log"
    passed=$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$out/tests.log")
    require_count "$count" "$passed" "$2 ${*:3}"
}

# run_alone COUNT TARGET REGEX [EXCLUDED]: runs the tests with matching names, each in a separate process, two at a
# time: the delayed queue is a property of the process.
run_alone() {
    local count=$1 folder=. binary tests status=0
    binary=$(test_binary "$2")
    [ "$2" = cuda ] || folder=src/$2
    rm -f "$out/alone.txt"
    tests=$("$binary" --list --format terse | sed -n 's/: test$//p' | grep -E "$3" | grep -vE "${4:-^$}")
    (cd "$folder" && LD_LIBRARY_PATH=$out xargs -P 2 -I{} bash -c '
        log=$2/alone-${1//:/-}.log began=$(date +%s%N)
        if ! "$0" --include-ignored --exact "$1" >"$log" 2>&1; then
            cat "$log"
            exit 1
        fi
        echo "$((($(date +%s%N) - began) / 1000000)) ms $1" >>"$2/alone.txt"
    ' "$binary" {} "$out" <<<"$tests") || status=$?
    require_count "$count" "$(wc -l <<<"$tests")" "$2 $3"
    echo "$count tests of $2, each in a separate process"
    return $status
}

require_count() {
    if [ "$1" != "$2" ]; then
        echo "$3: $2 tests instead of $1: a test is missing, or the count in tests/cuda.sh is outdated" >&2
        return 1
    fi
}

# Installs the other NVRTC versions of registers.lock besides 13.0, each for one architecture.
other_versions() {
    environment python-newest 'nvidia-cuda-nvrtc==13.5.37'
    environment python-12 'nvidia-cuda-nvrtc-cu12==12.9.86'
}

# Compiles every kernel for every architecture with every NVRTC version. Fails on spills, on more than 12,000
# instructions, and on figures that differ from registers.lock.
compile() {
    build
    other_versions
    # In two processes: within one, NVRTC compiles sequentially.
    side_by_side python sm_80 sm_86 sm_89 -- python sm_90 sm_100 sm_120
    side_by_side python-newest sm_90 -- python-12 sm_90
}

# side_by_side ENVIRONMENT ARCHITECTURE... -- ENVIRONMENT ARCHITECTURE...
side_by_side() {
    local first=() status=0
    while [ "$1" != -- ]; do
        first+=("$1")
        shift
    done
    kernels_with "${first[@]}" >"$out/kernels.txt" &
    kernels_with "${@:2}"
    wait $! || status=$?
    cat "$out/kernels.txt"
    return $status
}

# kernels_with ENVIRONMENT ARCHITECTURE...
kernels_with() {
    local architectures=("${@:2}")
    VIRTUAL_ENV=$out/$1 target/release/runner compile-kernels --lock "$registers_lock" "${architectures[@]/#/--arch=}"
}

# Checks that registers.lock is current by its digests, and compiles one of its groups, chosen by the commit.
registers() {
    build
    target/release/runner compile-kernels --lock "$registers_lock" --sample "$(git rev-parse HEAD)"
}

# Compiles the kernels with missing or stale figures in registers.lock, and updates them.
lock() {
    build
    other_versions
    for version in python python-newest python-12; do
        VIRTUAL_ENV=$out/$version target/release/runner compile-kernels --lock "$registers_lock" --write
    done
}

# Self-tests of the emulator.
emulator() {
    bash tests/emulator/selftest.sh
}

# Memory, queues and error states, with each queue delayed in turn, so that a missing event gives wrong numbers. One test
# at a time: the driver's reading counts the memory of all threads.
device() {
    bash tests/emulator/build.sh "$out"
    for delay in none compute copy all random:1 random:2; do
        EMULATED_DELAY=$delay run_tests 10 cuda device:: --test-threads=1
    done
    for step in 2097152 33554432; do
        EMULATED_POOL_STEP=$step run_tests 1 cuda device::driver_reading_matches_the_peak
    done
    run_tests 12 cuda states::
    run_tests 2 device cuda::tests
}

# Each operation against the CPU's, under AddressSanitizer and UBSan. Cases alternate between thread orders and between
# the roundings that a card may use.
kernels() {
    local stack=$out/sanitized preload
    preload=$(bash tests/emulator/build.sh "$stack" --sanitize | tail -n 1)
    run_tests 67 cuda kernels::
}

# Combinations of strategies, prediction against the ledger, out of memory, each missing event, PyTorch's reference
# vectors. Excludes tests of ranks, which are on processors, and of large values; unless RUNNER_TEST_FULL=1 also the
# program tests that the CPU device covers: bytes and FLOPs, deterministic recomputation, losses with 16-bit storage, and
# detection of wrong vectors.
engine() {
    bash tests/emulator/build.sh "$out"
    local count=146 left_out='^tests::(caching|ranks|threads|recompute|strategies)::|_noticed$|::loss_is_within_|inference::[a-z_]*_keys_'
    if [ "${RUNNER_TEST_FULL:-0}" = 1 ]; then
        count=179 left_out='^tests::(caching|ranks)::'
    fi
    RUNNER_TEST_DEVICE=cuda run_alone "$count" execute ^tests:: "$left_out"
}

# End-to-end tests of the program, and autotuning.
sweep() {
    bash tests/emulator/build.sh "$out"
    run_alone 15 cuda '^(sweep|choices)::'
}

# The digest of the CUDA device and its reference: kernels, launches, the CPU's kernels, operations, emulator, tests,
# toolchain, versions of the crates that the device uses. Other crates are device-independent and tested on the CPU
# device; `known.rs` has the data sheets of cards.
digest() {
    {
        rustc --version
        "${CXX:-g++}" -dumpfullversion
        cargo tree --locked --package device --edges normal,build --prefix none | sed 's/ (.*//' | LC_ALL=C sort -u
        git ls-files -z -co --exclude-standard -- src/device ':!src/device/known.rs' src/ops tests/emulator tests/cuda tests/cuda.sh |
            LC_ALL=C sort -z | xargs -0 sha256sum
    } | sha256sum | cut -d' ' -f1
}

# If the digest differs from the committed one: every part except `compile`, whose figures are in registers.lock;
# otherwise the parts registers, device and sweep. A successful full run writes the digest, which must be committed.
gate() {
    local current
    current=$(digest)
    if [ "$current" = "$(cat "$digest_file" 2>/dev/null)" ]; then
        echo "The CUDA device matches $digest_file: quick tests"
        run_parts registers device sweep
        return
    fi
    echo "The CUDA device differs from $digest_file: all tests"
    # The kernels last: NVRTC takes twice as long in a sanitized process, and the earlier parts fill its cache.
    run_parts registers emulator device engine sweep kernels
    if [ "$current" != "$(digest)" ]; then
        echo "the CUDA device changed during the tests: run them again" >&2
        return 1
    fi
    echo "$current" >"$digest_file"
    echo "commit $digest_file: the digest of the tested CUDA device"
}

run_parts() {
    local part
    for part in "$@"; do
        local began=$SECONDS
        echo "== cuda $part"
        "$part"
        echo "== cuda $part: $((SECONDS - began)) s"
    done
}

for part in "${@:-${parts[@]}}"; do
    if [[ " ${parts[*]} gate lock " != *" $part "* ]]; then
        echo "unknown part $part; use ${parts[*]}, gate or lock" >&2
        exit 2
    fi
done
mkdir -p "$out"
# The NVRTC of PyTorch 2.11, which does not find its builtins by itself. Only VIRTUAL_ENV points to it.
environment python 'nvidia-cuda-nvrtc==13.0.88'
unset LD_LIBRARY_PATH CUDA_HOME CUDA_PATH CONDA_PREFIX
export VIRTUAL_ENV=$out/python RUNNER_CACHE_DIR=$out/cache
run_parts "${@:-${parts[@]}}"
