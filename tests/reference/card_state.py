#!/usr/bin/env python3
"""What a card does while something is measured on it, as nvidia-smi tells: what explains a figure later.

    python tests/reference/card_state.py              what the card is, does and has to do now
    python tests/reference/card_state.py RECORD       a table of what was recorded, by `nvidia-smi QUERY --loop-ms 500`

Where there is no nvidia-smi, it says so and nothing fails. `--query` prints the QUERY.
"""

import statistics
import subprocess
import sys
import tempfile

# Of one card, the first: with more of them, CUDA_VISIBLE_DEVICES does not reorder what nvidia-smi counts.
QUERY = [
    "--id=0",
    "--query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
]
# The columns after the timestamp, and what they are called in figures.
NAMES = ["sm_mhz", "memory_mhz", "watts", "celsius", "utilization", "memory_mib"]
TITLES = ["SM clock, MHz", "memory clock, MHz", "power, W", "temperature, C", "utilization, %", "memory used, MiB"]
# Samples of less utilization are of a process that starts up or compiles.
BUSY = 50

ABSENT = "no nvidia-smi: clocks, power, temperature and other processes are unknown"


def ask(*arguments):
    """What nvidia-smi answers, or why it does not."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return ABSENT
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi: {error}"
    return (done.stdout if done.returncode == 0 else f"nvidia-smi: {done.stdout}{done.stderr}").strip()


def describe():
    """What the card is, does and has to do now."""
    card = "name,driver_version,vbios_version,pstate,clocks.max.sm,clocks.max.mem,power.limit"
    lines = [ask("--id=0", f"--query-gpu={card}", "--format=csv")]
    if lines != [ABSENT]:
        lines += [ask(*QUERY[:2], "--format=csv"), f"processes: {processes() or 'none'}"]
    return "\n".join(lines)


def processes():
    """Whoever works on the card, a line each."""
    return ask("--id=0", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader")


class Watch:
    """Records the card's state for as long as it is entered."""

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
        """Medians while the card was busy, and how many processes were on it beforehand; None is unknown."""
        medians = {name: middle(values) for name, values in columns(self.samples).items()}
        return {name: medians[name] for name in NAMES[:4]} | {"others": self.others}


def parse(lines):
    """Samples of the card when it was busy, or all of them if it never was."""
    samples = []
    for line in lines:
        cells = line.strip().split(", ")[1:]
        if len(cells) == len(NAMES):
            samples.append(dict(zip(NAMES, map(number, cells))))
    busy = [sample for sample in samples if (sample["utilization"] or 0) >= BUSY]
    return busy or samples


def number(cell):
    """`[N/A]` is None."""
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
