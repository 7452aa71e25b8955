"""Compares PyTorch's allocator requests and peaks on the GPU of this machine with the predicted ones.

    python3 tests/reference/pytorch_memory/on_card.py --runner target/release/runner --out DIR

Needs torch in this Python, of a version that `runner` predicts, and a card that `runner devices --targets` lists. Exports
the scripts of the recorded programs and of experiments/gpt2-24gb.toml for that card and version, runs several at a time
as far as their predicted peaks fit, and writes a line for each to OUT/pytorch-memory.csv as it ends: `same`, or the
first difference. Peaks of versions before 2.15 may differ where the driver's addresses do not ascend: `addresses` is a
program whose requests are as predicted, and whose peak is that of a replay at the driver's addresses (replay.py). Exit
code 1 if a program failed or differs otherwise; programs that `--seconds` left no time for are counted as `not run`, a failure only if none was run.
"""

import argparse
import concurrent.futures
import csv
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record
import replay

# Real sizes first: they are the most telling, and take most of the memory.
PROGRAMS = ["../../../experiments/gpt2-24gb", "large", "gpt", "llama", "padded", "drawn"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", default="target/release/runner")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="DIR", help="folder of pytorch-memory.csv (.)")
    parser.add_argument("--only", metavar="REGEX", default="", help='programs such as "gpt/fp32 fused"')
    parser.add_argument("--seconds", type=float, default=3600, help="start no program after this time (3600)")
    parser.add_argument("--workers", type=int, default=4, help="programs at a time (4)")
    parser.add_argument("--memory", type=float, default=64, help="GiB that they may reserve together (64)")
    arguments = parser.parse_args()
    began = time.monotonic()

    name, target = card(arguments.runner)
    # Imported once: each script runs in a process forked from this one, which has not used the card.
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    chosen = [program for program in programs(version, target) if re.search(arguments.only, str(program))]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        exported = export_all(arguments.runner, chosen, target, Path(work))
        print(f"{len(exported)} of {len(chosen)} programs are predicted for PyTorch {torch.__version__} on {name}", flush=True)
        with open(arguments.out / "pytorch-memory.csv", "w", newline="") as out:
            counts = run_all(exported, arguments, began, csv.writer(out, lineterminator="\n"), out)
    print(", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    is_compared = "same" in counts or "addresses" in counts
    sys.exit(not is_compared or not set(counts) <= {"same", "addresses", "not run"})


def card(runner):
    """The name of the first GPU, and its target's."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()
    listed = subprocess.run([runner, "devices", "--targets"], capture_output=True, text=True, check=True).stdout
    found = [line.split()[0] for line in listed.splitlines() if f" {name}  " in line]
    if not found:
        sys.exit(f"`runner devices --targets` does not list {name}")
    return name, found[0]


def programs(version, card):
    for experiment in PROGRAMS:
        for strategy, keys in record.strategies(experiment).items():
            ways = ["fused"]
            ways += ["foreach", "for-loop"] if f"{experiment}/{strategy}" in record.UNFUSED else []
            ways += ["reentrant"] if {"recompute", "loss_chunks"} & keys.keys() else []
            yield from (record.Program(version, experiment, strategy, way, card) for way in ways)


def export_all(runner, chosen, target, work):
    """The programs with a prediction: each with its script and the predicted sequence."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        exports = list(pool.map(lambda program: record.export(runner, program, target, folder(work, program)), chosen))
    return [(program, *export) for program, export in zip(chosen, exports) if export]


def folder(work, program):
    made = work / Path(program.experiment).name
    made.mkdir(exist_ok=True)
    return made


def reserved(text):
    """The predicted peak of reserved bytes of a script."""
    [line] = [line for line in text.splitlines() if line.startswith("PREDICTED = ")]
    return max(pair[1] for pair in eval(line.removeprefix("PREDICTED = ")))


def run_all(exported, arguments, began, rows, out):
    waiting = [(program, script, predicted, reserved(script.read_text())) for program, script, _, predicted in exported]
    running, counts, budget = {}, {}, arguments.memory * 2**30
    rows.writerow(["program", "steps", "allocated_bytes", "reserved_bytes", "result", "detail"])
    while waiting or running:
        free = budget - sum(entry[3] for entry in running.values())
        is_late = time.monotonic() - began > arguments.seconds
        fitting = [entry for entry in waiting if entry[3] <= free or not running]
        if fitting and len(running) < arguments.workers and not is_late:
            waiting.remove(fitting[0])
            running[start(fitting[0][1])] = fitting[0]
            continue
        if is_late and waiting:
            counts["not run"] = len(waiting)
            waiting = []
        if not running:
            break
        process, code = os.wait()
        program, script, predicted, _ = running.pop(process)
        status, row = judge(program, script, predicted, code)
        counts[status] = counts.get(status, 0) + 1
        rows.writerow(row)
        out.flush()
        if status not in ("same", "addresses"):
            print(f"{program}: {status}, {row[-1]}", flush=True)
    return {status: count for status, count in counts.items() if count}


def start(script):
    """Runs a script in a forked process; its output goes to `out`, `err` and `events` beside it."""
    process = os.fork()
    if process:
        return process
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(script.with_name(name), os.O_CREAT | os.O_WRONLY, 0o600), number)
    sys.argv = [str(script), "--requests", str(script.with_name("requests.txt"))]
    try:
        keep_events(script.with_name("events"))
        runpy.run_path(str(script), run_name="__main__")
    except BaseException as error:  # The parent reports it.
        print(repr(error)[:300], file=sys.stderr, flush=True)
    os._exit(1)


def keep_events(file):
    """Writes the events of the memory history that the script asks for to a file, too."""
    import torch

    take = torch.cuda.memory._snapshot

    def snapshot():
        taken = take()
        with open(file, "w") as out:
            for event in taken["device_traces"][0]:
                json.dump({key: event[key] for key in ("action", "addr", "size")}, out)
                out.write("\n")
        return taken

    torch.cuda.memory._snapshot = snapshot


def judge(program, script, predicted, code):
    """The status of a program, and its row."""
    if code != 0:
        said = script.with_name("err").read_text().strip().splitlines() or ["no output"]
        return "failed", [program, 0, "", "", "failed", said[-1]]
    steps = [json.loads(line) for line in script.with_name("out").read_text().splitlines() if line.startswith("{")]
    peaks = [[step[f"{name}_bytes"] for step in steps] for name in ("allocated", "reserved")]
    known = [[step[f"predicted_{name}_bytes"] for step in steps] for name in ("allocated", "reserved")]
    requests = script.with_name("requests.txt").read_text()
    detail = record.difference(record.normalized(predicted), record.normalized(requests)).replace("\n", " ")
    status = "same"
    if "DIFFERENT" in detail:
        status = "different"
    elif peaks != known:
        replayed = replay.replay(list(map(json.loads, script.with_name("events").open())))
        status = "addresses" if replayed == (max(peaks[0]), True) else "different peaks"
        [allocated, reserved] = [" ".join(map(str, numbers)) for numbers in known]
        detail += f"; predicted {allocated} allocated, {reserved} reserved"
    return status, [program, len(steps), *(" ".join(map(str, numbers)) for numbers in peaks), status, detail]


if __name__ == "__main__":
    main()
