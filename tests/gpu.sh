#!/usr/bin/env bash
# Everything that takes a GPU, in three commands of at most eight minutes each, and what they need where Rust is:
#
#     bash tests/gpu.sh pack      where there is Rust: builds what the others need into target/gpu
#
#     bash tests/gpu.sh pairs     where there is a GPU, from the root of the same tree with target/gpu in it:
#                                 PyTorch (eager and compiled) taking turns with us
#     bash tests/gpu.sh tests     kernels against the processor's, strategies, prediction and external reading on `cuda`
#     bash tests/gpu.sh sweep     every strategy of GPT-2 124M, six repeats of the rows that matter, and a profile
#
# They stand for themselves, in any order: none takes another's time. They need a driver, NVRTC, cuBLASLt and python3
# 3.11; `pairs` a python3 (PYTHON names another) with torch, and torch.compile a C compiler. What is missing is said.
# Each leaves two files in OUT, rewritten after each step: COMMAND.md, which says what came of it, and COMMAND.tar.gz
# with logs, tables, rows, and what the card did meanwhile; `pairs` its table and figures beside them, rewritten after
# each round. OUT is results/gpu, which git ignores, or any folder that is kept (`OUT=/somewhere bash tests/gpu.sh
# pairs`). Kernels are compiled and algorithms chosen once for all, into target/gpu-cache (RUNNER_CACHE_DIR names another):
# keep it between the commands. Each ends with 1 if anything failed, after the rest was tried.
#
# EXPERIMENT, STRATEGY, REPEATED, DEVICE and PEER_DEVICE change what is trained and where, LIMIT the seconds. With the
# emulated stack of tests/cuda.sh, the whole of it is tried without a GPU:
#
#     LD_LIBRARY_PATH=$PWD/target/emulated VIRTUAL_ENV=$PWD/target/emulated/python PEER_DEVICE=cpu STRATEGY=bf16 REPEATED=bf16 \
#         EXPERIMENT=tests/reference/vectors/experiment.toml bash tests/gpu.sh pairs
set -uo pipefail
cd "$(dirname "$0")/.."

packed=target/gpu
experiment=${EXPERIMENT:-experiments/gpt2-124m.toml}
# The first is what PyTorch repeats.
read -ra strategies <<<"${STRATEGY:-bf16 graph}"
# The baseline is among them, or nothing is ranked.
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
    # The test binaries, by the name of what they test.
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
    # A static program would need none, and could not load the driver.
    local glibc
    glibc=$(readelf --version-info "$packed"/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d_ -f2)
    echo "$glibc" >"$packed/glibc"
    ls -l "$packed"
    echo "$(uname -m) with glibc $glibc or newer is what they need"
}

tests() {
    step kernels 150 "$packed/test-cuda" --test-threads=1 --ignored kernels::
    step device 60 "$packed/test-cuda" --test-threads=1 --ignored device::
    step context 30 "$packed/test-device" --test-threads=1 --ignored cuda::tests
    # Strategies against each other, prediction against the ledger, queues, running out of memory, and what PyTorch made
    # of the same parameters and batches. A card takes the time it takes: that a missing event shows cannot be tried.
    # The tests find their vectors from the folder of their crate.
    step engine "$(left)" env -C src/execute RUNNER_TEST_DEVICE=cuda "$PWD/$packed/test-execute" --test-threads=1 \
        --skip no_event_is_idle --skip caching:: tests::
}

sweep() {
    local train=("$runner" sweep "$experiment" --device "$device" --out "$work/runs" --timeout 60s) only
    step once 240 "${train[@]}" --fresh
    step profile 30 "$runner" explain "$experiment" --device "$device" --out "$work/runs" \
        --run "$(run_of "${strategies[0]}")"
    table
    # In turns, so that their speeds can be ranked. Rounds that are done stay; the last table has its time.
    only=$(IFS=, && echo "${repeated[*]}")
    step rounds $(($(left) - 20)) "${train[@]}" --filter "$only" --repeats 6
    table
}

table() {
    step table 10 "$runner" compare "$work"/runs/*.csv --format markdown
}

pairs() {
    local chosen=() strategy
    rm -f "$out"/pytorch-pairs.*
    for strategy in "${strategies[@]}"; do chosen+=(--strategy "$strategy"); done
    step pairs "$(left)" "$python" tests/reference/card_pairs.py "$experiment" "${chosen[@]}" --device "$device" \
        --peer-device "$peer_device" --runner "$runner" --python "$python" --out "$out" --seconds "$(left)" --each 150
}

# What went wrong so far.
failures=()
# The process that notes what the card does.
recorder=

left() {
    echo $((limit - SECONDS))
}

# step NAME SECONDS COMMAND...: runs a command with what time is left, at most so many seconds. Its output is NAME.log.
step() {
    local name=${1//\//-} most=$2
    shift 2
    local time=$(($(left) < most ? $(left) : most)) began=$SECONDS
    if ((time < 5)); then
        echo "$name: no time left"
        failures+=("$name: no time left")
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
        failures+=("$name $ended: $(grep . "$work/$name.log" | tail -n 1)")
        tail -n 15 "$work/$name.log" | sed 's/^/    /'
    fi
    leave
    return $code
}

# The id of the run of a strategy that was measured last.
run_of() {
    python3 - "$work"/runs/*.csv "$1" <<'END'
import csv, sys
rows = [row for row in csv.DictReader(open(sys.argv[1], newline="")) if row["strategy"] == sys.argv[2]]
print(rows[-1]["run_id"] if rows else "1")
END
}

# Puts what there is so far into OUT, each file whole or not at all.
leave() {
    summary >"$out/$command.md.new" && mv "$out/$command.md.new" "$out/$command.md"
    tar -C "$work" -czf "$out/$command.tar.gz.new" .
    # With 1, a file grew meanwhile: that of the card's state does.
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
    if ((${#failures[@]} == 0)); then
        echo "No step failed, in $SECONDS s."
    else
        printf 'Failed: %s\n' "${failures[@]}"
    fi
}

# Ends here, with one line, where the packed programs cannot run.
require_packed() {
    if [[ ! -x $runner ]]; then
        echo "there is no $runner: run \`bash tests/gpu.sh pack\` where there is Rust, and bring target/gpu here" >&2
        exit 2
    fi
    local needed here
    needed=$(cat "$packed/glibc")
    here=$(ldd --version 2>/dev/null | sed -n '1s/.* //p')
    if [[ $(printf '%s\n' "$needed" "$here" | sort -V | head -n 1) != "$needed" ]]; then
        echo "the packed programs need glibc $needed, this machine has ${here:-none}: pack on a system no newer" >&2
        exit 2
    fi
}

# What a command does, between what the card was and did before and after.
run() {
    command=$1
    out=${OUT:-results/gpu}
    work=$packed/logs/$command
    export RUNNER_CACHE_DIR=${RUNNER_CACHE_DIR:-$PWD/target/gpu-cache}
    # Absolute: the engine's tests run in another folder.
    RUNNER_CACHE_DIR=$(realpath -m "$RUNNER_CACHE_DIR")
    # Where torch is, there are the libraries that `runner` needs.
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
        # However this ends, nothing must look at the card while something else is measured.
        trap 'kill "$recorder" 2>/dev/null' EXIT
    fi
    # Compiles the kernels, for this command and those that follow.
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
    ((${#failures[@]} == 0))
}

case ${1:-} in
    pack) pack ;;
    pairs | tests | sweep) run "$1" ;;
    run) echo "\`run\` is three commands now: pairs, tests and sweep" >&2 && exit 2 ;;
    *)
        sed -n "2,/^set /{/^set /d;s/^# \\{0,1\\}//;p}" "$0" >&2
        exit 2
        ;;
esac
