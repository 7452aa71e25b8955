#!/usr/bin/env python3
"""A table of Nsight Compute's counters, by kernel.

    python tests/reference/card_counters.py COUNTERS      a file by `ncu --csv --page raw --log-file COUNTERS`

Figures are medians over the launches of a kernel. The stalls are the two most frequent reasons for which a warp waits,
in cycles per issued instruction.
"""

import collections
import csv
import statistics
import sys

TIME = "gpu__time_duration.sum"
FIGURES = {
    "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM %": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L1 %": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2 %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "warps %": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "blocks": "launch__grid_size",
}
STALL, PER_INSTRUCTION = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
TO_MICROSECONDS = {"ns": 1e-3, "us": 1, "ms": 1e3, "nsecond": 1e-3, "usecond": 1, "msecond": 1e3}


def number(text):
    return float(text.replace(",", "") or "nan")


def main(path):
    lines = [line for line in open(path, newline="") if line.startswith('"')]
    if len(lines) < 3:
        sys.exit(f"{path} has no counters")
    rows = csv.DictReader(lines)
    units = next(rows)
    launches = collections.defaultdict(list)
    for row in rows:
        launches[row["Kernel Name"]].append(row)
    scale = TO_MICROSECONDS[units[TIME]]

    def median(rows, column):
        return statistics.median(number(row[column]) for row in rows) if column in rows[0] else float("nan")

    print("| kernel | launches | us |", " | ".join(FIGURES), "| stalls |")
    print("|---" * (len(FIGURES) + 4) + "|")
    for kernel, rows in sorted(launches.items(), key=lambda item: -sum(number(row[TIME]) for row in item[1])):
        stalls = {
            column[len(STALL) : -len(PER_INSTRUCTION)]: median(rows, column)
            for column in rows[0]
            if column.startswith(STALL) and column.endswith(PER_INSTRUCTION)
        }
        stalls.pop("selected", None)
        worst = sorted(stalls, key=stalls.get, reverse=True)[:2]
        cells = [
            kernel,
            str(len(rows)),
            f"{median(rows, TIME) * scale:.1f}",
            *(f"{median(rows, column):.0f}" for column in FIGURES.values()),
            ", ".join(f"{reason} {stalls[reason]:.1f}" for reason in worst),
        ]
        print("|", " | ".join(cells), "|")


main(*sys.argv[1:])
