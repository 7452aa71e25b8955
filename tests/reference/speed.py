#!/usr/bin/env python3
"""Compares the speed and memory of `runner` and PyTorch on the CPU: the same runs, alternating.

    cargo build --release
    python tests/reference/speed.py experiments/gpt-mini.toml experiments/cpu-shapes.toml

Needs Linux and Python 3.11, and PyTorch with safetensors in the Python of `--python`. First, every run of the files (or
the one of `--run`) is trained once and dumped, unmeasured. Then it is measured in pairs: `runner sweep` of the run's
`run.toml` and `pytorch.py --speed` of its dump, each in its own processes, in an order that alternates between pairs.

    tok/s        tokens over the median time of the timed steps: whole optimizer steps, each with its own batch. Of layers
                 in a list: samples (smp/s)
    peak         the peak resident set of the training process (VmHWM), with libraries and program. runner's is read by
                 this script, 20 times a second, until training ends; PyTorch's by `pytorch.py` at its end
    growth       runner: the column `external_peak_bytes`, the peak minus the resident set before the run's first
                 allocation. PyTorch: the peak minus the resident set after `import torch`

Exit codes: 0 success; 1 if one of the two failed; 2 if there is nothing to compare; 130 if interrupted.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from resident import Resident

MIB = 1 << 20

# Interval between readings of the resident set: long enough not to slow the process down.
LOOK_SECONDS = 0.05

# The file that runner writes after training; it then measures the device, with additional memory.
AFTER_TRAINING = "memory.csv"


class Failed(Exception):
    """A process that failed, with the reason."""


def main():
    arguments = parse_arguments()
    if not arguments.runner.is_file():
        fail(2, f"there is no {arguments.runner}: run `cargo build --release`, or write --runner PATH")
    try:
        configurations = list_runs(arguments)
        print_header()
        for configuration in configurations:
            compare(arguments, configuration)
    except Failed as error:
        fail(1, error)
    except KeyboardInterrupt:
        fail(130, "interrupted")


def fail(code, message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Compares the speed and memory of runner and PyTorch on the CPU.")
    parser.add_argument("files", type=Path, nargs="+", help="experiment files")
    parser.add_argument("--run", type=int, metavar="N", help="only this run: its number in `runner check --resolved`")
    parser.add_argument("--pairs", type=positive, default=5, metavar="N", help="number of pairs (5)")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="Python with torch and safetensors")
    root = Path(__file__).resolve().parents[2]
    parser.add_argument("--runner", type=Path, default=root / "target/release/runner", metavar="PATH")
    return parser.parse_args()


def positive(text):
    if (number := int(text)) < 1:
        raise ValueError
    return number


def list_runs(arguments):
    """The resolved configuration of every run to compare, each the text of an experiment file."""
    output = call([arguments.runner, "check", "--resolved", *arguments.files]).stdout
    # Each begins with a comment that gives its file, number and name.
    found = re.split(r"^# .*: run (\d+), .*\n", output, flags=re.MULTILINE)[1:]
    runs = [text for number, text in zip(found[::2], found[1::2]) if arguments.run in (None, int(number))]
    if not runs:
        fail(2, f"these files have no run {arguments.run}" if arguments.run else "these files have no runs")
    return runs


def call(command):
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise Failed(f"cannot start {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise Failed(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr.strip()}")
    return done


# One measurement


@dataclass
class Reading:
    """Tokens or samples per second; bytes of the peak resident set and of its growth (PyTorch: since the import)."""

    per_s: float
    peak: int
    growth: int


def measure_runner(arguments, file, folder):
    """Sweeps the one run of `file`. Returns its reading and its row."""
    command = [arguments.runner, "sweep", file, "--device", "cpu", "--repeats", "1", "--fresh", "--out", folder]
    peak = 0
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([str(part) for part in command], stdout=said, stderr=said)
        try:
            while process.poll() is None:
                peak = max(peak, peak_of_training(process.pid, folder))
                time.sleep(LOOK_SECONDS)
        finally:
            process.kill()
        said.seek(0)
        if process.returncode:
            raise Failed(f"runner ended with {process.returncode}: {said.read().strip()}")
    row = only_row(folder)
    if row["status"] != "ok":
        raise Failed(f"runner's run ended as {row['status']}: {row['message']}")
    if not peak:
        raise Failed("runner's training process ended before its memory could be read: increase measure.steps")
    return Reading(float(row["tokens_per_s"] or row["samples_per_s"]), peak, int(row["external_peak_bytes"])), row


def peak_of_training(parent, folder):
    """Peak resident bytes of the child of a sweep; 0 if it is not training."""
    peaks = [0]
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            peaks += [Resident(child).peak for child in children.read_text().split()]
        except (OSError, KeyError):
            pass  # It has ended.
    # Checked after the reading, so that the reading was taken during training.
    return 0 if training_is_over(folder) else max(peaks)


def training_is_over(folder):
    try:
        return any(folder.rglob(AFTER_TRAINING))
    except FileNotFoundError:
        return True  # The finished run's folder was being renamed into place.


def only_row(folder):
    [table] = folder.glob("*.csv")
    with table.open(newline="") as file:
        [row] = csv.DictReader(file)
    return row


def measure_pytorch(arguments, dump):
    """Repeats a dump. Returns its reading and the other figures of `pytorch.py`."""
    script = Path(__file__).with_name("pytorch.py")
    said = json.loads(call([arguments.python, script, "--speed", dump]).stdout)
    peak = said["peak_resident_bytes"]
    return Reading(said["per_s"], peak, peak - said["resident_after_import_bytes"]), said


# Pairs


def compare(arguments, configuration):
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        file = place / "run.toml"
        file.write_text(configuration)
        dumps = place / "dumps"
        call([arguments.runner, "sweep", file, "--device", "cpu", "--out", place / "first", "--dump", dumps])
        [dump] = dumps.iterdir()
        row = only_row(place / "first")

        pairs = []
        for number in range(1, arguments.pairs + 1):
            runner_first = number % 2 == 1
            if runner_first:
                ours, _ = measure_runner(arguments, file, place / str(number))
            theirs, said = measure_pytorch(arguments, dump)
            if not runner_first:
                ours, _ = measure_runner(arguments, file, place / str(number))
            if not pairs:
                print_title(row, said)
            pairs.append((ours, theirs))
            print_pair(number, "runner" if runner_first else "PyTorch", ours, theirs)
        print_summary(pairs, unit(row))


# The published output: lines of at most 100 columns


def print_header():
    print(shlex.join(["python", *sys.argv]))
    print(f"{datetime.date.today()}, {processor()}, {len(os.sched_getaffinity(0))} processors, {memory()}")
    print(f"{platform.system()}, load {os.getloadavg()[0]:.2f}")


def processor():
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return names[0] if names else platform.machine()


def memory():
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"


def print_title(row, said):
    print()
    print(f"{row['experiment']}, {row['strategy']}: {row['model']}, batch {row['batch_size']}")
    print(
        f"{row['warmup_steps']} + {row['steps']} steps, {said['threads']} threads, "
        f"runner {row['version']}, PyTorch {said['torch']}"
    )
    print()
    print(f"               {unit(row)}                     peak, MiB        growth, MiB")
    print("pair  first   runner  PyTorch  ratio    runner  PyTorch    runner  PyTorch")


def unit(row):
    return "tok/s" if row["tokens_per_s"] else "smp/s"


def print_pair(number, first, ours, theirs):
    print(
        f"{number:4}  {first:7} {ours.per_s:6.0f}  {theirs.per_s:7.0f}  {ratio(ours, theirs):5.2f}"
        f"    {ours.peak / MIB:6.1f}  {theirs.peak / MIB:7.1f}    {ours.growth / MIB:6.1f}  {theirs.growth / MIB:7.1f}",
        flush=True,
    )


def ratio(ours, theirs):
    return ours.per_s / theirs.per_s


def print_summary(pairs, unit):
    ours, theirs = (Medians(readings) for readings in zip(*pairs))
    ratios = [ratio(*pair) for pair in pairs]
    print()
    print(f"{unit}, medians   runner {ours.per_s:.0f}, PyTorch {theirs.per_s:.0f}")
    print(
        f"runner's {unit}   {statistics.median(ratios):.2f} of PyTorch's: the median of the pairs' ratios, "
        f"which are {min(ratios):.2f} to {max(ratios):.2f}"
    )
    print(
        f"peak             runner {ours.peak / MIB:.1f} MiB, PyTorch {theirs.peak / MIB:.1f} MiB: "
        f"{theirs.peak / ours.peak:.2f} of runner's"
    )
    print(
        f"growth           PyTorch {theirs.growth / MIB:.1f} MiB after its import: "
        f"{theirs.growth / ours.growth:.2f} of runner's growth, {theirs.growth / ours.peak:.2f} of its peak",
        flush=True,
    )


class Medians:
    """The median of each figure of several readings."""

    def __init__(self, readings):
        self.per_s, self.peak, self.growth = (
            statistics.median(getattr(reading, name) for reading in readings)
            for name in ("per_s", "peak", "growth")
        )


if __name__ == "__main__":
    main()
