#!/usr/bin/env bash
# The CUDA device without a card: kernels compiled by NVRTC, and the program run on the emulated stack of tests/emulator.
#
#     bash tests/cuda.sh              everything
#     bash tests/cuda.sh PART...      only these: compile, registers, emulator, device, kernels, sanitize, engine, sweep
#     bash tests/cuda.sh lock         compiles the kernels whose figures in registers.lock are missing or stale, and writes it
#
# Needs g++, python3 and, the first time, PyPI: NVRTC comes from there, three versions of it. Everything it makes lies in
# target/emulated.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$PWD/target/emulated
lock=$PWD/src/device/cuda/registers.lock
parts=(compile registers emulator device kernels sanitize engine sweep)

# environment NAME REQUIREMENT: a Python environment of that name with an NVRTC, which needs neither a driver nor a card.
environment() {
    local folder=$out/$1
    if [ "$(cat "$folder/fetched" 2>/dev/null)" != "$2" ]; then
        python3 -m venv "$folder"
        "$folder/bin/pip" install --quiet "$2"
        echo "$2" >"$folder/fetched"
    fi
}

# emulated COMMAND...: on the stand-in driver and cuBLASLt.
emulated() {
    LD_LIBRARY_PATH=$out "$@"
}

# The binary of one test, for what cargo itself must not be run under.
test_binary() {
    cargo test --release --features cuda-tests --test "$1" --no-run --message-format=json 2>/dev/null |
        python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[1]:
        print(message["executable"])
' "$1"
}

# The versions of NVRTC that registers.lock has besides 13.0: each for one architecture.
other_versions() {
    environment python-newest 'nvidia-cuda-nvrtc==13.5.37'
    environment python-12 'nvidia-cuda-nvrtc-cu12==12.9.86'
}

# Every kernel for every architecture, with registers and spills; a spill fails, and so does a figure that is not the one in
# registers.lock. For one of the architectures with other versions.
compile() {
    cargo build --quiet --release
    other_versions
    # In two processes: in one, NVRTC compiles one file after the other.
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
    VIRTUAL_ENV=$out/$1 target/release/runner compile-kernels --lock "$lock" "${architectures[@]/#/--arch=}"
}

# registers.lock is current, by its digests; one of its groups, another with each commit, is compiled.
registers() {
    cargo build --quiet --release
    target/release/runner compile-kernels --lock "$lock" --sample "$(git rev-parse HEAD)"
}

# Brings registers.lock up to date.
lock() {
    cargo build --quiet --release
    other_versions
    for version in python python-newest python-12; do
        VIRTUAL_ENV=$out/$version target/release/runner compile-kernels --lock "$lock" --write
    done
}

# The emulator notices what it is for.
emulator() {
    bash tests/emulator/selftest.sh
}

# Memory, queues and bad states; whichever queue's work is put off, so that a missing event shows as wrong numbers.
device() {
    for delay in none compute copy all random:1 random:2; do
        EMULATED_DELAY=$delay emulated cargo test --quiet --release --features cuda-tests --test cuda_device
    done
    for step in 2097152 33554432; do
        EMULATED_POOL_STEP=$step emulated cargo test --quiet --release --features cuda-tests --test cuda_device witness
    done
    emulated cargo test --quiet --release --features cuda-tests --test cuda_states
}

# Each operation against the processor's, in three orders of a block's threads, and in each way that a card may round.
kernels() {
    local ways=("0 nearest unrounded" "1 truncated rounded" "7 truncated refused")
    for way in "${ways[@]}"; do
        read -r order sums gelu <<<"$way"
        EMULATED_ORDER=$order EMULATED_SUMS=$sums EMULATED_GELU=$gelu \
            emulated cargo test --quiet --release --features cuda-tests --test cuda_kernels
    done
}

# The same once more with what notices accesses out of bounds and undefined behaviour.
sanitize() {
    local preload
    preload=$(bash tests/emulator/build.sh "$out/sanitized" --sanitize | tail -n 1)
    # Leaks would be those of the test program, which ends with its device.
    env "$preload" ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH="$out/sanitized" "$(test_binary cuda_kernels)" --quiet
}

# Strategies against each other, prediction against the ledger, running out, every single event, PyTorch's vectors. One at
# a time: which queue is put off is a matter of the whole process.
engine() {
    emulated cargo test --quiet --release --features cuda-tests --lib -- --test-threads=1 execute::tests device::cuda::tests
}

# The program as its user meets it, and what it chooses by time.
sweep() {
    for test in cuda_sweep cuda_choices; do
        emulated cargo test --quiet --release --features cuda-tests --test $test -- --test-threads=1
    done
}

for part in "${@:-${parts[@]}}"; do
    if [[ " ${parts[*]} lock " != *" $part "* ]]; then
        echo "there is no part $part; the parts are ${parts[*]} and lock" >&2
        exit 2
    fi
done
mkdir -p "$out"
# The NVRTC of PyTorch 2.11, which does not find its builtins by itself. Nothing but the environment is to name it.
environment python 'nvidia-cuda-nvrtc==13.0.88'
unset LD_LIBRARY_PATH CUDA_HOME CUDA_PATH CONDA_PREFIX
export VIRTUAL_ENV=$out/python RUNNER_CACHE_DIR=$out/cache
bash tests/emulator/build.sh "$out"
for part in "${@:-${parts[@]}}"; do
    echo "== $part"
    began=$SECONDS
    "$part"
    echo "== $part: $((SECONDS - began)) s"
done
