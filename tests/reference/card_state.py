#!/usr/bin/env python3
"""Records the state of a GPU during a measurement, from nvidia-smi.

    python tests/reference/card_state.py              the GPU's model, state and processes now
    python tests/reference/card_state.py RECORD       a table of a record by `nvidia-smi QUERY --loop-ms 500`

Without nvidia-smi, it reports that and exits with 0. `--query` prints the QUERY.
"""

import statistics
import subprocess
import sys
import tempfile

# The first GPU only. CUDA_VISIBLE_DEVICES does not change nvidia-smi's numbering.
QUERY = [
    "--id=0",
    "--query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
]
# The columns after the timestamp, by their names in figures.
NAMES = ["sm_mhz", "memory_mhz", "watts", "celsius", "utilization", "memory_mib"]
TITLES = ["SM clock, MHz", "memory clock, MHz", "power, W", "temperature, C", "utilization, %", "memory used, MiB"]
# Below this utilization in percent, a process is starting up or compiling.
BUSY = 50

ABSENT = "no nvidia-smi: clocks, power, temperature and other processes are unknown"


def ask(*arguments):
    """The output of nvidia-smi, or the reason of its failure."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return ABSENT
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    return (done.stdout if done.returncode == 0 else f"nvidia-smi: {done.stdout}{done.stderr}").strip()


def describe():
    """The GPU's model, state and processes now."""
    card = "name,driver_version,vbios_version,pstate,clocks.max.sm,clocks.max.mem,power.limit"
    lines = [ask("--id=0", f"--query-gpu={card}", "--format=csv")]
    if lines != [ABSENT]:
        lines += [ask(*QUERY[:2], "--format=csv"), f"processes: {processes() or 'none'}"]
    return "\n".join(lines)


def processes():
    """The compute processes on the GPU, one per line."""
    return ask("--id=0", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")


class Watch:
    """Context manager that records the GPU's state."""

    def __enter__(self):
        others = processes()
        self.others = None if others.startswith(("no nvidia-smi", "nvidia-smi:")) else len(others.splitlines())
        self.record = tempfile.TemporaryFile("w+")
        try:
            command = ["nvidia-smi", *QUERY, "--loop-ms=500"]
            self.process = subprocess.Popen(command, stdout=self.record, stderr=subprocess.DEVNULL)
        except OSError:
            self.process = None
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
        self.record.seek(0)
        self.samples = parse(self.record)
        self.record.close()

    def figures(self):
        """Medians while the GPU was busy, and the number of other processes beforehand; None if unknown."""
        medians = {name: middle(values) for name, values in columns(self.samples).items()}
        return {name: medians[name] for name in NAMES[:4]} | {"others": self.others}


def parse(lines):
    """The samples while the GPU was busy, or all samples if it never was."""
    samples = []
    for line in lines:
        cells = line.strip().split(", ")[1:]
        if len(cells) == len(NAMES):
            samples.append(dict(zip(NAMES, map(number, cells))))
    busy = [sample for sample in samples if (sample["utilization"] or 0) >= BUSY]
    return busy or samples


def number(cell):
    """The number in a cell; None for `[N/A]`."""
    try:
        return float(cell)
    except ValueError:
        return None


def columns(samples):
    return {name: [sample[name] for sample in samples if sample[name] is not None] for name in NAMES}


def middle(values):
    return statistics.median(values) if values else None


def table(samples):
    lines = [f"| of {len(samples)} samples | lowest | median | highest |", "|---|---|---|---|"]
    for title, values in zip(TITLES, columns(samples).values()):
        cells = [f"{pick(values):.0f}" if values else "" for pick in (min, statistics.median, max)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    if len(sys.argv) == 1:
        print(describe())
    elif sys.argv[1] == "--query":
        print("\n".join(QUERY))
    else:
        with open(sys.argv[1]) as record:
            samples = parse(record)
        print(table(samples) if samples else ABSENT)


if __name__ == "__main__":
    main()
