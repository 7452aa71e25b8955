"""Measures the quality of the step times that `runner plan` estimates.

    python tests/reference/estimates.py target/release/runner results experiments/quickstart.toml \\
        experiments/strategies.toml

Needs results of the experiments, measured on this device. Plans the runs of each experiment twice: with device rates
from the *other* experiments only, and from its own results too. Compares the estimates with the measured medians by
Spearman's rank correlation and by the median relative error. Needs no packages.
"""

import csv
import io
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def key(row: dict) -> tuple:
    """The identity of a run within its experiment, in both tables."""
    return row["strategy"], row["batch_size"], row["model"]


def measured(table: Path) -> dict[tuple, float]:
    times: dict[tuple, list[float]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "ok" and row["step_ms_median"]:
                times.setdefault(key(row), []).append(float(row["step_ms_median"]))
    return {run: statistics.median(of_repeats) for run, of_repeats in times.items()}


def estimated(runner: str, experiment: str, out: Path) -> dict[tuple, float]:
    command = [runner, "plan", experiment, "--device", "cpu", "--out", str(out), "--format", "csv"]
    table = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = csv.DictReader(io.StringIO(table))
    return {key(row): float(row["estimated_step_ms"]) for row in rows if row["estimated_step_ms"]}


def ranks(values: list[float]) -> list[float]:
    """Ranks from 0; ties get their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def quality(pairs: list[tuple[float, float]]) -> str:
    estimates, times = zip(*pairs)
    correlation = statistics.correlation(ranks(estimates), ranks(times))
    off = statistics.median(abs(estimate / time - 1) for estimate, time in pairs)
    return f"{correlation:.2f} | {100 * off:.0f} %"


def main() -> None:
    runner, results, *experiments = sys.argv[1:]
    names = [Path(experiment).stem for experiment in experiments]
    print(
        "| experiment | runs | rates from others: rank correlation | median error "
        "| own results too: rank correlation | median error |"
    )
    print("|---|---|---|---|---|---|")
    everything: tuple[list, list] = ([], [])
    for experiment, name in zip(experiments, names):
        times = measured(Path(results) / f"{name}.csv")
        with tempfile.TemporaryDirectory() as place:
            for other in names:
                if other != name:
                    for part in (other, f"{other}.csv"):
                        (Path(place) / part).symlink_to((Path(results) / part).resolve())
            found = [estimated(runner, experiment, out) for out in (Path(place), Path(results))]
        pairs = [[(estimates[run], times[run]) for run in times if run in estimates] for estimates in found]
        for all_pairs, more in zip(everything, pairs):
            all_pairs += more
        print(f"| {name} | {len(pairs[0])} | {' | '.join(map(quality, pairs))} |")
    print(f"| all | {len(everything[0])} | {' | '.join(map(quality, everything))} |")


if __name__ == "__main__":
    main()
