#!/usr/bin/env bash
# All checks that need a GPU, in five commands of at most eight minutes each, and a build step for a machine with Rust:
#
#     bash tests/gpu.sh pack      on a machine with Rust: builds the programs of the other commands and compiles the
#                                 kernels for ARCHITECTURE (9.0), into target/gpu
#
#     bash tests/gpu.sh first     on a machine with a GPU, from the root of the same tree, with target/gpu in it: the
#                                 most telling of the checks below, and PyTorch's memory beside the predicted one
#     bash tests/gpu.sh pairs     runner and PyTorch (eager and compiled), alternating
#     bash tests/gpu.sh tests     kernels against the CPU's; strategies, prediction and external reading on `cuda`
#     bash tests/gpu.sh inspect   invalid accesses and races of the kernels, and their hardware counters
#     bash tests/gpu.sh sweep     every strategy of GPT-2 124M, six repeats of the rows that matter, and a profile
#
# The commands are independent and run in any order. They need a driver, NVRTC, cuBLASLt and python3 3.11; `first` and
# `pairs` need a python3 with torch (PYTHON overrides it), and torch.compile needs a C compiler. Missing parts are
# reported.
#
# Each command writes two files into OUT, rewritten after each step: COMMAND.md, a summary, and COMMAND.tar.gz, with
# logs, tables, rows and the GPU's clocks, power and temperature. `pairs` adds its table and figures, rewritten after
# each round. OUT is results/gpu, which git ignores; to keep the files, set another folder
# (`OUT=/somewhere bash tests/gpu.sh pairs`). Compiled kernels and chosen matmul algorithms are cached in
# target/gpu-cache (RUNNER_CACHE_DIR overrides it), which starts with the packed kernels: keep it between the commands.
# After a failed step, a command runs the other steps, then exits with 1.
#
# EXPERIMENT, STRATEGY, REPEATED, DEVICE and PEER_DEVICE override what is trained and where; LIMIT is the time limit in
# seconds. The emulated stack of tests/cuda.sh runs all of it without a GPU:
#
#     LD_LIBRARY_PATH=$PWD/target/emulated VIRTUAL_ENV=$PWD/target/emulated/python PEER_DEVICE=cpu \
#         STRATEGY=bf16 REPEATED=bf16 EXPERIMENT=tests/reference/vectors/experiment.toml bash tests/gpu.sh pairs
set -uo pipefail
cd "$(dirname "$0")/.."

packed=target/gpu
experiment=${EXPERIMENT:-experiments/gpt2-124m.toml}
# PyTorch repeats the first.
read -ra strategies <<<"${STRATEGY:-bf16 graph}"
# The list must include the baseline: without it, speeds are not ranked.
read -ra repeated <<<"${REPEATED:-bf16 graph tf32 recompute accumulate/accumulate=8}"
device=${DEVICE:-cuda}
peer_device=${PEER_DEVICE:-cuda}
python=${PYTHON:-python3}
limit=${LIMIT:-480}
runner=$packed/runner

pack() {
    set -e
    cargo build --release
    rm -rf "$packed"
    mkdir -p "$packed"
    cp target/release/runner "$runner"
    # The test binaries, as test-TARGET.
    {
        cargo test --release --no-run --message-format=json --test cuda
        cargo test --release --no-run --message-format=json --lib -p device -p execute
    } |
        python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        shutil.copy(message["executable"], sys.argv[1] + "/test-" + message["target"]["name"])
' "$packed"
    strip "$packed"/*
    # NVRTC needs no card. The emulated one has the capability of the real one.
    bash tests/emulator/build.sh target/emulated
    if [[ ! -e target/emulated/python ]]; then
        python3 -m venv target/emulated/python
        target/emulated/python/bin/pip install --quiet nvidia-cuda-nvrtc==13.0.88
    fi
    env EMULATED_CAPABILITY="${ARCHITECTURE:-9.0}" LD_LIBRARY_PATH="$PWD/target/emulated" \
        VIRTUAL_ENV="$PWD/target/emulated/python" RUNNER_CACHE_DIR="$PWD/$packed/kernels" "$runner" devices
    rm -f "$packed"/kernels/product-*  # algorithms of the emulated cuBLASLt
    tar -C "$packed/kernels" -czf "$packed/kernels.tar.gz" .
    rm -r "$packed/kernels"
    # Linked dynamically: a static program could not load the driver.
    local glibc
    glibc=$(readelf --version-info "$runner" "$packed"/test-* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d_ -f2)
    echo "$glibc" >"$packed/glibc"
    ls -l "$packed"
    echo "these programs need $(uname -m) and glibc $glibc or newer"
}

# Correctness comes first: the speed of wrong results means nothing. What is not timed runs together.
first() {
    device
    kernels 120 &
    engine 150 &
    step pytorch-memory 150 "$python" tests/reference/pytorch_memory/on_card.py --runner "$runner" --out "$out" \
        --seconds 130 &
    # All but the recorder of the GPU's state.
    wait $(jobs -p | grep -vx "${recorder:-none}")
    leave
    train once 60 --filter "$(IFS=, && echo "${repeated[*]}")"
    profile
    table
    compare_pairs 60 "$work" --rounds 1 --eager-only
    inspect
    train rest "$(($(left) - 20))"
    table
}

tests() {
    device
    kernels 150 &
    engine "$(left)" &
    wait $(jobs -p | grep -vx "${recorder:-none}")
    leave
}

inspect() {
    # A kernel is looked up in several modules: a failed lookup is no error.
    sanitize memcheck 40 "--report-api-errors no"
    counters 90
    sanitize racecheck 100 ""
}

# sanitize TOOL SECONDS OPTIONS: the tests of the kernels with shared memory or computed addresses, under compute-sanitizer. No
# matmuls: the library's kernels are not ours.
sanitize() {
    step "$1" "$2" env UNDER="compute-sanitizer --tool $1 --error-exitcode 1 $3" bash tests/gpu.sh each . test-cuda 12 \
        kernels::attention kernels::layer_norm kernels::rms_norm kernels::head_norm kernels::cross_entropy \
        kernels::embedding kernels::optimizer::elementwise kernels::optimizer::global_norm kernels::storage
}

# Hardware counters of the program's own kernels, in a short run. Clocks are left as they are.
counters() {
    # The first 40 launches belong to the small model that measures the context.
    local names='^(attention|layer_norm|rms_norm|cross_entropy|adam|cast|activation|gate|rotary|norm_partials)'
    step counters "$1" ncu --clock-control none --target-processes all --kernel-name-base function \
        --kernel-name "regex:$names" --launch-skip 40 --launch-count 120 --csv --page raw --log-file "$work/counters.csv" \
        --section SpeedOfLight --section LaunchStats --section WarpStateStats \
        "$runner" sweep "$experiment" --device "$device" --out "$work/counted" --filter "${strategies[0]}" \
        --set measure.steps=1 --set measure.warmup_steps=1 --set evaluation=off --timeout 120s &&
        step counters-table 10 python3 tests/reference/card_counters.py "$work/counters.csv"
}

# Memory, queues and error states. Alone: they read the GPU's free memory.
device() {
    step device 60 bash tests/gpu.sh each . test-cuda 1 device::
    step context 30 bash tests/gpu.sh each src/device test-device 1 cuda::tests
}

kernels() {
    step kernels "$1" bash tests/gpu.sh each . test-cuda 4 kernels::
}

# Strategies against each other, prediction against the ledger, queues, out of memory, and PyTorch's vectors. Skipped:
# whether removing an event makes results wrong, since a GPU's queues cannot be delayed. The tests look for their vectors
# relative to the folder of their crate.
engine() {
    local skipped=(--skip no_event_is_idle --skip caching::)
    # Ranks need two cards and NCCL.
    [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || skipped+=(--skip ranks::)
    step engine "$1" env RUNNER_TEST_DEVICE=cuda bash tests/gpu.sh each src/execute test-execute 4 tests:: "${skipped[@]}"
}

# each FOLDER BINARY PROCESSES FILTER...: runs the tests of a packed binary, each in a process of its own: an error that
# ends a CUDA context fails one test. UNDER is a command that runs each.
each() {
    local binary=$PWD/$packed/$2 tests
    if ! tests=$("$binary" --list --format terse "${@:4}"); then
        echo "FAILED: $2 does not start"
        return 1
    fi
    tests=$(sed -n 's/: test$//p' <<<"$tests")
    if [[ -z $tests ]]; then
        echo "FAILED: no test matches ${*:4}"
        return 1
    fi
    echo "$(wc -l <<<"$tests") tests"
    (cd "$1" && xargs -P "$3" -I{} bash -c '
            output=$($UNDER "$0" --include-ignored --exact "$1" 2>&1) && echo "ok $1" && exit
            echo "FAILED $1"
            tail -n 25 <<<"$output"
            exit 1' "$binary" {} <<<"$tests")
}

sweep() {
    train once 240 --fresh
    profile
    table
    # Interleaved repeats, so that speeds can be ranked. Finished rounds are kept; time is reserved for the last table.
    train rounds $(($(left) - 20)) --filter "$(IFS=, && echo "${repeated[*]}")" --repeats 6
    table
}

profile() {
    step profile 30 "$runner" explain "$experiment" --device "$device" --out "$work/runs" \
        --run "$(run_of "${strategies[0]}")"
}

# train STEP SECONDS OPTION...
train() {
    step "$1" "$2" "$runner" sweep "$experiment" --device "$device" --out "$work/runs" --timeout 60s "${@:3}"
}

table() {
    step table 10 "$runner" compare "$work"/runs/*.csv --format markdown
}

pairs() {
    rm -f "$out"/pytorch-pairs.*
    compare_pairs "$(left)" "$out" --each 150
}

# compare_pairs SECONDS FOLDER OPTION...
compare_pairs() {
    local chosen=() strategy
    for strategy in "${strategies[@]}"; do chosen+=(--strategy "$strategy"); done
    step pairs "$1" "$python" tests/reference/card_pairs.py "$experiment" "${chosen[@]}" --device "$device" \
        --peer-device "$peer_device" --runner "$runner" --python "$python" --out "$2" --seconds "$1" "${@:3}"
}

# The process that records the GPU's state.
recorder=

left() {
    echo $((limit - SECONDS))
}

# step NAME SECONDS COMMAND...: runs a command for at most SECONDS or the time left. Its output is NAME.log.
step() {
    local name=${1//\//-} most=$2
    shift 2
    local time=$(($(left) < most ? $(left) : most)) began=$SECONDS
    if ((time < 5)); then
        echo "$name: no time left"
        echo "$name: no time left" >>"$work/failures.txt"
        return 1
    fi
    timeout --kill-after=5 "$time" "$@" >"$work/$name.log" 2>&1
    local code=$? ended
    case $code in
        0) ended=ok ;;
        124 | 137) ended="ended after its $time s" ;;
        *) ended="ended with $code" ;;
    esac
    echo "$name: $ended after $((SECONDS - began)) s" | tee -a "$work/steps.txt"
    if [[ $code != 0 ]]; then
        {
            echo "$name $ended: $(grep . "$work/$name.log" | tail -n 1)"
            grep '^FAILED' "$work/$name.log" | head -n 10
        } | tee -a "$work/failures.txt" | sed 's/^/    /'
        tail -n 15 "$work/$name.log" | sed 's/^/    /'
    fi
    # Steps that run together are followed by one `leave`.
    [[ $BASHPID == $$ ]] && leave
    return $code
}

# The run id in the last row of a strategy.
run_of() {
    python3 - "$work"/runs/*.csv "$1" <<'END'
import csv, sys
rows = [row for row in csv.DictReader(open(sys.argv[1], newline="")) if row["strategy"] == sys.argv[2]]
print(rows[-1]["run_id"] if rows else "1")
END
}

# Writes the results so far into OUT, each file atomically.
leave() {
    summary >"$out/$command.md.new" && mv "$out/$command.md.new" "$out/$command.md"
    tar -C "$work" -czf "$out/$command.tar.gz.new" .
    # tar exits with 1 if a file grew while it was read: the record of the GPU's state does.
    (($? <= 1)) && mv "$out/$command.tar.gz.new" "$out/$command.tar.gz"
}

summary() {
    echo "# $command: $(basename "$experiment" .toml) on $(date -u +%Y-%m-%d)"
    echo
    echo '```text'
    cat "$work/devices.log" "$work/before.txt"
    echo
    cat "$work/steps.txt"
    echo '```'
    echo
    case $command in
        first) cat "$work/table.log" "$work/pytorch-memory.log" "$work/pytorch-pairs.md" ;;
        sweep) cat "$work/table.log" ;;
        pairs) cat "$out/pytorch-pairs.md" ;;
    esac 2>/dev/null
    echo
    python3 tests/reference/card_state.py "$work/card.csv"
    echo
    if [[ -e $work/profile.log ]]; then
        echo '```text'
        sed -n '/^where time goes/,$p' "$work/profile.log"
        echo '```'
        echo
    fi
    if [[ -e $work/counters-table.log ]]; then
        cat "$work/counters-table.log"
        echo
    fi
    if [[ ! -s $work/failures.txt ]]; then
        echo "No step failed, in $SECONDS s."
    else
        sed 's/^/Failed: /' "$work/failures.txt"
    fi
}

# Exits with a one-line error if the packed programs cannot run on this machine.
require_packed() {
    if [[ ! -x $runner ]]; then
        echo "there is no $runner: run \`bash tests/gpu.sh pack\` on a machine with Rust and copy target/gpu here" >&2
        exit 2
    fi
    local needed here
    needed=$(cat "$packed/glibc")
    here=$(ldd --version 2>/dev/null | sed -n '1s/.* //p')
    if [[ $(printf '%s\n' "$needed" "$here" | sort -V | head -n 1) != "$needed" ]]; then
        echo "the packed programs need glibc $needed, this machine has ${here:-none}: pack on an older system" >&2
        exit 2
    fi
}

# Runs a command and records the GPU's state before, during and after it.
run() {
    command=$1
    out=${OUT:-results/gpu}
    work=$packed/logs/$command
    export RUNNER_CACHE_DIR=${RUNNER_CACHE_DIR:-$PWD/target/gpu-cache}
    # An absolute path: the engine's tests run in another folder.
    RUNNER_CACHE_DIR=$(realpath -m "$RUNNER_CACHE_DIR")
    # torch's environment contains the CUDA libraries that `runner` loads.
    if [[ -n ${PYTHON:-} && -z ${VIRTUAL_ENV:-} ]]; then
        VIRTUAL_ENV=$("$python" -c 'import sys; print(sys.prefix)') && export VIRTUAL_ENV
    fi
    require_packed
    rm -rf "$work"
    mkdir -p "$out" "$work"
    SECONDS=0
    python3 tests/reference/card_state.py | tee "$work/before.txt"
    touch "$work/card.csv"
    local query
    mapfile -t query < <(python3 tests/reference/card_state.py --query)
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi "${query[@]}" --loop-ms=500 >"$work/card.csv" 2>&1 &
        recorder=$!
        # Always stop the recorder: polling the GPU would disturb later measurements.
        trap 'kill "$recorder" 2>/dev/null' EXIT
    fi
    if [[ -e $packed/kernels.tar.gz && ! -e $RUNNER_CACHE_DIR ]]; then
        # Files that others could write to would not be used.
        mkdir -p -m 700 "$RUNNER_CACHE_DIR"
        tar -C "$RUNNER_CACHE_DIR" --no-same-owner --no-overwrite-dir -xzf "$packed/kernels.tar.gz"
    fi
    # Compiles the kernels that were not packed, for this command and those that follow.
    step devices 120 "$runner" devices
    "$command"
    python3 tests/reference/card_state.py >"$work/after.txt"
    if [[ -n $recorder ]]; then
        kill "$recorder"
        wait "$recorder" 2>/dev/null
        trap - EXIT
    fi
    leave
    cat "$out/$command.md"
    [[ ! -s $work/failures.txt ]]
}

case ${1:-} in
    pack) pack ;;
    first | pairs | tests | inspect | sweep) run "$1" ;;
    each) each "${@:2}" ;;
    *)
        sed -n "2,/^set /{/^set /d;s/^# \\{0,1\\}//;p}" "$0" >&2
        exit 2
        ;;
esac
