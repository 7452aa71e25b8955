#!/usr/bin/env bash
# Everything that takes a GPU, in one go of at most eight minutes: kernels, equivalence, prediction and witness on `cuda`,
# the strategies of GPT-2 124M with a profile of each operation, and PyTorch (eager and compiled) taking turns with us.
#
#     bash tests/gpu.sh pack                 where there is Rust: builds what the other command needs into target/gpu
#     bash tests/gpu.sh run [OUT]            where there is a GPU, from the root of the same tree with target/gpu in it
#
# `run` needs a driver, NVRTC, cuBLASLt and for the comparison a `python3` (PYTHON names another) with torch. It leaves in
# OUT (results/gpu) logs of the tests, the CSV and table of the strategies, the profile, the pairs with PyTorch, and
# summary.md, which names GPU, driver and versions. It ends with 1 if anything failed, after the rest was tried.
#
# EXPERIMENT, STRATEGY, DEVICE and PEER_DEVICE change what is trained and where. With the emulated stack of tests/cuda.sh,
# the whole of it is tried without a GPU:
#
#     LD_LIBRARY_PATH=target/emulated VIRTUAL_ENV=target/emulated/python PEER_DEVICE=cpu STRATEGY=bf16 \
#         EXPERIMENT=tests/reference/vectors/experiment.toml bash tests/gpu.sh run
set -uo pipefail
cd "$(dirname "$0")/.."

packed=target/gpu
experiment=${EXPERIMENT:-experiments/gpt2-124m.toml}
strategy=${STRATEGY:-bf16}
device=${DEVICE:-cuda}
peer_device=${PEER_DEVICE:-cuda}
python=${PYTHON:-python3}
limit=480

pack() {
    set -e
    cargo build --release
    mkdir -p "$packed"
    cp target/release/runner "$packed/runner"
    # The test binaries, by the name of what they test.
    cargo test --release --features cuda-tests --no-run --message-format=json --lib --test cuda_kernels --test cuda_device |
        python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message.get("profile", {}).get("test"):
        shutil.copy(message["executable"], sys.argv[1] + "/test-" + message["target"]["name"])
' "$packed"
    strip "$packed"/*
    ls -l "$packed"
}

# What went wrong so far.
failures=()

left() {
    echo $((limit - SECONDS))
}

# step NAME SECONDS COMMAND...: runs a command with what time is left, at most so many seconds; its output is OUT/NAME.log.
step() {
    local name=$1 most=$2
    shift 2
    local time=$(($(left) < most ? $(left) : most))
    if ((time < 5)); then
        echo "$name: no time left"
        failures+=("$name: no time left")
        return 1
    fi
    local began=$SECONDS
    timeout --kill-after=5 "$time" "$@" >"$out/$name.log" 2>&1
    local code=$?
    echo "$name: $([[ $code == 0 ]] && echo ok || echo "ended with $code") after $((SECONDS - began)) s"
    if [[ $code != 0 ]]; then
        failures+=("$name ended with $code: $(tail -n 1 "$out/$name.log")")
        tail -n 15 "$out/$name.log" | sed 's/^/    /'
    fi
    return $code
}

run() {
    out=${1:-results/gpu}
    mkdir -p "$out"
    SECONDS=0
    local runner=$packed/runner

    step devices 60 "$runner" devices
    cat "$out/devices.log"

    # The kernels against the processor's; then the engine: strategies against each other, prediction against the ledger,
    # queues, running out of memory, and what PyTorch made of the same parameters and batches.
    step kernels 90 "$packed/test-cuda_kernels" --test-threads=1
    step device 60 "$packed/test-cuda_device" --test-threads=1
    # A card takes the time it takes: that a missing event shows cannot be tried there.
    step engine 120 "$packed/test-runner" --test-threads=1 execute::tests --skip no_event_is_idle

    step sweep 200 "$runner" sweep "$experiment" --device "$device" --out "$out/runs" --fresh --timeout 60s
    cp "$out"/runs/*.csv "$out/" 2>/dev/null
    step table 10 "$runner" compare "$out"/runs/*.csv --format markdown
    step profile 30 "$runner" explain "$experiment" --device "$device" --out "$out/runs" --run "$(run_of "$strategy")"
    step pairs "$(left)" "$python" tests/reference/card_pairs.py "$experiment" --strategy "$strategy" --device "$device" \
        --peer-device "$peer_device" --runner "$runner" --python "$python" --out "$out"

    summary >"$out/summary.md"
    cat "$out/summary.md"
    ((${#failures[@]} == 0))
}

# The id of the run of a strategy that was measured last.
run_of() {
    python3 - "$out"/runs/*.csv "$1" <<'END'
import csv, sys
rows = [row for row in csv.DictReader(open(sys.argv[1], newline="")) if row["strategy"] == sys.argv[2]]
print(rows[-1]["run_id"] if rows else "1")
END
}

summary() {
    echo "# $(basename "$experiment" .toml) on $(date -u +%Y-%m-%d)"
    echo
    echo '```text'
    cat "$out/devices.log"
    echo '```'
    echo
    cat "$out/table.log" 2>/dev/null
    echo
    cat "$out/pytorch-pairs.md" 2>/dev/null
    echo
    echo '```text'
    sed -n '/^where time goes/,$p' "$out/profile.log" 2>/dev/null
    echo '```'
    echo
    if ((${#failures[@]} == 0)); then
        echo "Everything ran, in $SECONDS s."
    else
        printf 'Failed: %s\n' "${failures[@]}"
    fi
}

case ${1:-} in
    pack) pack ;;
    run) shift && run "$@" ;;
    *)
        sed -n "2,/^set /{/^set /d;s/^# \\{0,1\\}//;p}" "$0" >&2
        exit 2
        ;;
esac
