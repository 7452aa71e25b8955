#!/usr/bin/env python3
"""Compares the speed and memory of `runner` and PyTorch on a GPU: the same run, alternating.

    python tests/reference/card_pairs.py experiments/gpt2-124m.toml --strategy bf16 --strategy graph --out DIR

Needs Python 3.11, and torch in the Python of `--python`. A round runs one process per contestant, in sequence:
`runner sweep` for each strategy, then `card.py` and `card.py --compile`, which repeat the first strategy. Every other
round runs in reverse order. A contestant that fails or times out is dropped from later rounds; the table gives the
reason. Prints a line for each finished process. After each round, OUT/pytorch-pairs.md holds the table of medians so
far, and OUT/pytorch-pairs.jsonl every figure, with the GPU's clocks and temperature during its measurement.

Exit codes: 0 success; 1 if a contestant failed; 2 if there is nothing to compare.
"""

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

from card_state import Watch, describe

ROOT = Path(__file__).resolve().parents[2]
PEER = Path(__file__).with_name("card.py")
MIB = 1 << 20


class Failed(Exception):
    """A process that failed, with the reason."""


@dataclass
class Contestant:
    """One of the compared programs, with its figures by round."""

    name: str
    measure: Callable[[], dict]
    figures: dict = field(default_factory=dict)
    problem: str | None = None

    def take_turn(self, number):
        try:
            with Watch() as card:
                figure = self.measure()
        except (Failed, ValueError, LookupError) as error:
            # Unreadable output, too, is a failure of this contestant.
            self.problem = f"round {number}: {error!r}" if not isinstance(error, Failed) else f"round {number}: {error}"
            print(f"round {number}  {self.name}: {error}", flush=True)
            return
        self.figures[number] = figure | card.figures()
        print(f"round {number}  {self.name}: {json.dumps(self.figures[number])}", flush=True)

    def all(self, key):
        """The known values of a figure, in the order of the rounds."""
        return [figure[key] for figure in self.figures.values() if figure.get(key) is not None]


def main():
    arguments = parse_arguments()
    print(describe(), flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            contestants = list_contestants(arguments, Path(folder))
            take_turns(arguments, contestants)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if any(contestant.problem for contestant in contestants) else 0)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Compares runner with PyTorch on a GPU.")
    parser.add_argument("file", type=Path, help="an experiment file")
    parser.add_argument("--strategy", required=True, action="append", help="a strategy of the file; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of rounds (3)")
    parser.add_argument("--seconds", type=float, default=3600, metavar="S", help="time limit for all rounds (3600)")
    parser.add_argument("--each", type=float, default=240, metavar="S", help="time limit of a process (240)")
    parser.add_argument("--device", default="cuda", help="runner's device (cuda)")
    parser.add_argument("--peer-device", default="cuda", help="PyTorch's device, by its name in PyTorch (cuda)")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="Python interpreter with torch")
    parser.add_argument("--runner", type=Path, default=ROOT / "target/release/runner", metavar="PATH")
    parser.add_argument("--out", type=Path, default=Path("."), metavar="DIR", help="folder for the table (.)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `runner sweep`")
    parser.add_argument("--eager-only", action="store_true", help="omit torch.compile")
    return parser.parse_args()


def list_contestants(arguments, folder):
    run_toml = folder / "run.toml"
    run_toml.write_text(resolved(arguments))
    contestants = [
        Contestant(f"runner {strategy}", lambda strategy=strategy: sweep(arguments, strategy, folder))
        for strategy in arguments.strategy
    ]
    ways = [[]] if arguments.eager_only else [[], ["--compile"]]
    peers = [Contestant(" ".join(["PyTorch", *way]), lambda way=way: peer(arguments, run_toml, way)) for way in ways]
    return contestants + peers


def overrides(arguments):
    return [word for override in arguments.set for word in ("--set", override)]


def resolved(arguments):
    """The resolved configuration of the first strategy's run, for `card.py`."""
    text = run([arguments.runner, "check", "--resolved", *overrides(arguments), arguments.file], arguments.each)
    # Each run begins with a comment that gives its file, number and name.
    runs = re.split(r"^# .*: run \d+, (.*)\n", text, flags=re.MULTILINE)[1:]
    found = [config for name, config in zip(runs[::2], runs[1::2]) if name == arguments.strategy[0]]
    if len(found) != 1:
        raise Failed(f"{arguments.file}: expected one run of {arguments.strategy[0]}, found {len(found)}")
    return found[0]


def take_turns(arguments, contestants):
    began, longest = time.monotonic(), 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number in range(1, arguments.rounds + 1):
        round_began = time.monotonic()
        if round_began - began + longest > arguments.seconds:
            print(f"round {number}: no time left for it", flush=True)
            break
        for contestant in contestants if number % 2 == 1 else reversed(contestants):
            if contestant.problem is None:
                contestant.take_turn(number)
        longest = max(longest, time.monotonic() - round_began)
        write(arguments, contestants)
    print((arguments.out / "pytorch-pairs.md").read_text())


def sweep(arguments, strategy, folder):
    """The figures of `runner`."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        command = [arguments.runner, "sweep", arguments.file, "--filter", strategy, "--device", arguments.device]
        run([*command, "--out", out, "--fresh", *overrides(arguments)], arguments.each)
        [table] = Path(out).glob("*.csv")
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
    if len(rows) != 1 or rows[0]["status"] != "ok":
        said = "; ".join(f"{row['strategy']} {row['status']} {row['message']}".strip() for row in rows)
        raise Failed(f"{strategy}: expected one row with status ok, got {len(rows)}: {said}")
    [row] = rows
    return {
        "peer": f"runner {row['version']}, {row['strategy']}",
        "device": row["device"],
        "strategy": row["strategy"],
        "step_ms_median": float(row["step_ms_median"]),
        "step_ms_min": float(row["step_ms_min"]),
        "tokens_per_s": float(row["tokens_per_s"]),
        "peak_allocated_bytes": int(row["peak_bytes"]),
        "peak_reserved_bytes": int(row["reserved_peak_bytes"]),
    }


def peer(arguments, run_toml, options):
    command = [arguments.python, PEER, run_toml, "--device", arguments.peer_device, *options]
    # Skip other output, such as that of libraries.
    lines = [line for line in run(command, arguments.each).splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def run(command, seconds):
    command = [str(word) for word in command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except OSError as error:
        raise Failed(f"cannot start {command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"took longer than {seconds:.0f} s") from error
    if done.returncode != 0:
        print(done.stdout + done.stderr, flush=True)
        raise Failed(f"ended with {done.returncode}: {reason(done.stderr or done.stdout)}")
    return done.stdout


def reason(output):
    """The line with the reason: the first error line, such as that of a traceback, or else the last line."""
    lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|error: ", line)]
    return (errors or lines or ["no output"])[-1][:300]


def write(arguments, contestants):
    table = make_table(arguments, contestants)
    raw = [json.dumps({"round": number} | figure) for c in contestants for number, figure in c.figures.items()]
    for name, text in (("pytorch-pairs.md", table), ("pytorch-pairs.jsonl", "\n".join(raw))):
        # Written atomically: readers see a whole table.
        new = arguments.out / f"{name}.new"
        new.write_text(text + "\n")
        new.replace(arguments.out / name)


def make_table(arguments, contestants):
    measured = [contestant for contestant in contestants if contestant.figures]
    rounds = max((len(contestant.figures) for contestant in measured), default=0)
    cards = sorted({device for contestant in measured for device in contestant.all("device")})
    lines = [
        f"{arguments.file.stem} on {' and '.join(cards) or 'no device'}; medians of {rounds} of {arguments.rounds} "
        "rounds, processes alternating",
        "",
        "| | tokens/s (range) | over eager (range) | peak allocated MiB | peak reserved MiB | SM MHz | W | C |",
        "|---|---|---|---|---|---|---|---|",
    ]
    eager = next(contestant for contestant in contestants if contestant.name == "PyTorch")
    lines += [make_row(contestant, eager) for contestant in contestants]
    lines += ["", *notes(contestants)]
    return "\n".join(lines)


def make_row(contestant, eager):
    if not contestant.figures:
        return f"| {contestant.name} | {contestant.problem or 'not measured'} | | | | | | |"
    speeds = {number: figure["tokens_per_s"] for number, figure in contestant.figures.items()}
    # Ratios within a round: both were measured at about the same time.
    ratios = [speed / eager.figures[n]["tokens_per_s"] for n, speed in speeds.items() if n in eager.figures]
    peaks = [mib(contestant.all(key)) for key in ("peak_allocated_bytes", "peak_reserved_bytes")]
    state = [middle(contestant.all(key)) for key in ("sm_mhz", "watts", "celsius")]
    cells = [contestant.all("peer")[0], spread(list(speeds.values()), 0), spread(ratios, 2), *peaks, *state]
    return f"| {' | '.join(cells)} |"


def spread(values, digits):
    if not values:
        return ""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def middle(values):
    return f"{statistics.median(values):.0f}" if values else ""


def mib(peaks):
    return f"{max(peaks) / MIB:.0f}" if peaks else ""


def notes(contestants):
    """Context of the figures: versions, attention kernels, other processes, failures."""
    for contestant in contestants:
        said = [f"attention: {kernels}" for kernels in sorted(set(contestant.all("attention")))]
        said += [f"{key} {version}" for key in ("cuda", "cudnn") for version in sorted(set(contestant.all(key)))]
        if most := max(contestant.all("others"), default=0):
            said += [f"up to {most} other processes on the GPU"]
        said += [f"dropped after {contestant.problem}"] if contestant.problem else []
        if said:
            yield f"- {contestant.name}: {', '.join(said)}"


if __name__ == "__main__":
    main()
