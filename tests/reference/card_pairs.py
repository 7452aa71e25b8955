#!/usr/bin/env python3
"""Compares the speed and the memory of `runner` with PyTorch's on a card: the same run, taking turns.

    python tests/reference/card_pairs.py experiments/gpt2-124m.toml --strategy bf16 --out results/published/CARD

Needs Python 3.11 and torch. Each round is three processes, one after the other: `runner sweep` of the one strategy,
`card.py`, `card.py --compile`; every other round in the opposite order. Prints a line for each process as it ends, and
a table of medians, which are written to OUT/pytorch-pairs.md too.

Exit codes: 0; 1 if one of them failed; 2 if there is nothing to compare.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEER = Path(__file__).with_name("card.py")
MIB = 1 << 20


class Failed(Exception):
    """What a process said instead of a figure."""


def main():
    arguments = parse_arguments()
    try:
        with tempfile.TemporaryDirectory() as folder:
            figures = take_turns(arguments, Path(folder))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    table = make_table(arguments, figures)
    print(table)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / "pytorch-pairs.md").write_text(table + "\n")


def parse_arguments():
    parser = argparse.ArgumentParser(description="Compares runner with PyTorch on a card.")
    parser.add_argument("file", type=Path, help="an experiment file")
    parser.add_argument("--strategy", required=True, help="one of its strategies, as `runner plan` names it")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is measured (3)")
    parser.add_argument("--device", default="cuda", help="of runner (cuda)")
    parser.add_argument("--peer-device", default="cuda", help="of PyTorch, as it names it (cuda)")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="a Python with torch")
    parser.add_argument("--runner", type=Path, default=ROOT / "target/release/runner", metavar="PATH")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write the table")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for `runner sweep`")
    parser.add_argument("--eager-only", action="store_true", help="leave torch.compile out")
    return parser.parse_args()


def take_turns(arguments, folder):
    """Figures by who they are of, in the order of the rounds."""
    # The peer needs the run's configuration, which a first, unmeasured run leaves.
    run_toml = sweep(arguments, folder / "first")[1]
    ways = {"runner": lambda number: sweep(arguments, folder / str(number))[0], "eager": peer(arguments, run_toml, [])}
    if not arguments.eager_only:
        ways["compiled"] = peer(arguments, run_toml, ["--compile"])
    figures = {name: [] for name in ways}
    for number in range(arguments.rounds):
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            figure = ways[name](number)
            figures[name].append(figure)
            print(f"round {number + 1}  {name:9} {json.dumps(figure)}", flush=True)
    return figures


def sweep(arguments, out):
    """What `runner` measured, and the run's configuration."""
    overrides = [word for override in arguments.set for word in ("--set", override)]
    command = [arguments.runner, "sweep", arguments.file, "--filter", arguments.strategy, "--device", arguments.device]
    run([*command, "--out", out, "--fresh", *overrides])
    [table] = out.glob("*.csv")
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["status"] == "ok"]
    if len(rows) != 1:
        raise Failed(f"{arguments.strategy} gave {len(rows)} rows that are ok, not one")
    [row] = rows
    [run_toml] = out.glob("*/*/*/run.toml")
    figure = {
        "peer": f"runner {row['version']}",
        "device": row["device"],
        "strategy": row["strategy"],
        "step_ms_median": float(row["step_ms_median"]),
        "step_ms_min": float(row["step_ms_min"]),
        "tokens_per_s": float(row["tokens_per_s"]),
        "peak_allocated_bytes": int(row["peak_bytes"]),
        "peak_reserved_bytes": int(row["reserved_peak_bytes"]),
    }
    return figure, run_toml


def peer(arguments, run_toml, options):
    command = [arguments.python, PEER, run_toml, "--device", arguments.peer_device, *options]
    return lambda _: json.loads(run(command).splitlines()[-1])


def run(command):
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise Failed(f"`{' '.join(command)}` ended with {done.returncode}:\n{said}")
    return done.stdout


def make_table(arguments, figures):
    first = figures["runner"][0]
    lines = [
        f"{arguments.file.stem}, strategy {arguments.strategy}, on {first['device']}; medians of {arguments.rounds} "
        "rounds, processes taking turns",
        "",
        "| | tokens/s (range) | over eager (range) | peak allocated MiB | peak reserved MiB |",
        "|---|---|---|---|---|",
    ]
    for of in figures.values():
        speeds = [figure["tokens_per_s"] for figure in of]
        # Of the same round: what came in the same minute.
        ratios = [ours / theirs["tokens_per_s"] for ours, theirs in zip(speeds, figures["eager"])]
        peaks = [mib(of[0][key]) for key in ("peak_allocated_bytes", "peak_reserved_bytes")]
        lines.append(
            f"| {of[0]['peer']} | {statistics.median(speeds):.0f} ({min(speeds):.0f} to {max(speeds):.0f}) "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) | {peaks[0]} | {peaks[1]} |"
        )
    return "\n".join(lines)


def mib(figure):
    return "" if figure is None else f"{figure / MIB:.0f}"


if __name__ == "__main__":
    main()
