"""Records the allocator requests that PyTorch makes under nullcuda: writes vectors.csv and sequences/, or versions.csv.

    cargo build --release
    python3 tests/reference/pytorch_memory/record.py PYTHON

PYTHON is a Python with PyTorch's CUDA build. PyTorch 2.15 with transformers 5.24 writes vectors.csv, another version of one of
them its lines of versions.csv. Only programs whose script changed since the last recording run, unless
`--all` is given. README.md describes the files.
"""

import argparse
import concurrent.futures
import csv
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
VECTORS = HERE / "vectors.csv"
VERSIONS = HERE / "versions.csv"
NEWEST = "2.15"
NEWEST_LIBRARY = "5.24"
SEQUENCES = HERE / "sequences"

# NULLCUDA_DEVICE, and the target of `runner export`.
CARDS = {"a100": "a100-80gb", "h100": "h100-80gb", "rtx4090": "rtx-4090-24gb", "t4": "t4-16gb"}
# Cards for which only the oldest version has code.
OLD_CARDS = {"v100": "v100-16gb", "p100": "p100-16gb"}
OLD_VERSION = "2.6"

# Every strategy of these files runs on every card, and every drawn one on one card.
EXPERIMENTS = [
    "gpt", "llama", "large", "padded", "offload", "layers", "transformers", "transformers-gpt", "transformers-families",
    "transformers-masks", "transformers-parallel", "transformers-liger", "transformers-kernels", "transformers-padded",
    "trainer", "trainer-kernels", "trainer-padded", "ranks", "ranks-layers", "ranks-sharded",
    "ranks-transformers", "ranks-transformers-sharded",
]  # fmt: skip
# Programs that are recorded with the newest version only.
NEWEST_ONLY = [
    "large", "ranks", "ranks-layers", "ranks-sharded", "ranks-transformers", "ranks-transformers-sharded",
]  # fmt: skip
SAMPLED = [experiment for experiment in EXPERIMENTS if experiment not in NEWEST_ONLY]
DRAWN = ["drawn", "offload-drawn", "transformers-drawn", "trainer-drawn", "bitsandbytes-drawn", "families-drawn", "kernels-drawn"]
DRAWN_DOCUMENTS = ["documents-drawn", "documents-trainer-drawn"]
# Begin the names of experiments with the transformers library.
LIBRARY = ("transformers", "trainer", "bitsandbytes", "families", "kernels", "documents", "ranks-transformers")

# Keys of [plan] that change the script.
OPTIONS = {
    "fused": [],
    "foreach": ["plan.torch_optimizer=foreach"],
    "for-loop": ["plan.torch_optimizer=for-loop"],
    "reentrant": ["plan.torch_checkpoint=reentrant"],
    "masked": ["plan.torch_attention_mask=true"],
    "torchao": ["plan.torch_optimizer=torchao"],
}

# Experiments whose strategies run on the A100 and one other card.
FEW_CARDS = [
    "transformers-families", "transformers-masks", "transformers-parallel", "transformers-liger",
    "transformers-kernels", "trainer-kernels", "ranks", "ranks-layers", "ranks-sharded",
    "ranks-transformers", "ranks-transformers-sharded",
]  # fmt: skip

# Further programs with "foreach" and "for-loop". All that call `torch.utils.checkpoint` are recorded with "reentrant", too.
UNFUSED = [
    "gpt/fp32", "gpt/bf16", "gpt/fp16", "gpt/fp16-clip", "gpt/pure-bf16", "gpt/clip", "gpt/adam", "gpt/sgd",
    "gpt/sgd-momentum", "gpt/in-backward", "gpt/accumulate-tail", "gpt/zero", "gpt/freeze", "gpt/adafactor",
    "gpt/adafactor-fp16", "gpt/adafactor-pure-bf16", "gpt/adafactor-masters", "gpt/adafactor-in-backward", "gpt/muon-fp16",
    "llama/fp16", "llama/bf16", "llama/pure-bf16", "ranks-sharded/three", "ranks-sharded/pure-bf16", "ranks-sharded/adam",
    "ranks-sharded/sgd", "ranks-sharded/sgd-momentum",
]  # fmt: skip

# Further programs with attention masks.
MASKED = [
    "transformers/fp32", "transformers/bf16", "transformers/fp16", "transformers/pure-bf16", "transformers/block-bf16",
    "transformers/accumulate-tail", "transformers/evaluation-bf16", "transformers/lora-autocast", "transformers/qwen3",
    "transformers-gpt/fp32", "transformers-gpt/bf16", "transformers-gpt/dropout-bf16", "transformers-gpt/one-sample",
    "transformers-masks/eager-bf16", "transformers-masks/eager-gpt2-bf16", "transformers-masks/eager-one-sample",
    "transformers-masks/window-bf16", "transformers-masks/window-wide", "transformers-masks/window-qwen3-block",
    "transformers-masks/window-eager", "transformers-masks/gemma3-bf16", "transformers-masks/olmo3-bf16",
    "transformers-masks/phi3-window", "transformers-families/olmo2-fp32", "transformers-families/phi3-lora-bf16-block",
    "transformers-families/starcoder2-fp32", "transformers-parallel/neox-eager", "transformers-parallel/phi-groups",
    "trainer/fp32", "trainer/bf16", "trainer/every-bf16", "trainer/accumulate",
    "trainer/evaluation-bf16", "trainer/eager-bf16", "trainer/window-bf16", "transformers-liger/bf16-block", "trainer/liger",
    "transformers-kernels/bf16", "transformers-kernels/qwen-3", "transformers-kernels/phi-3", "transformers-kernels/gemma-3",
    "trainer-kernels/bf16-block",
]  # fmt: skip

# Experiments of padded documents.
PADDED = ["transformers-padded", "trainer-padded"]

# Small programs whose whole sequence is stored, to show the first difference.
WHOLE = [
    "gpt/fp32 fused a100", "gpt/block-bf16 fused rtx4090", "gpt/fp16-clip fused t4", "gpt/clip foreach a100",
    "gpt/evaluation-accumulate fused h100", "llama/bf16 fused a100",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Program:
    version: str
    # The version of transformers.
    library: str
    experiment: str
    strategy: str
    options: str
    card: str

    def __str__(self):
        return f"{self.experiment}/{self.strategy} {self.options} {self.card}"

    def file(self):
        return SEQUENCES / f"{self.experiment}.{self.strategy}.{self.options}.{self.card}.txt"


@dataclasses.dataclass
class Vector:
    """A line of vectors.csv, which has no `version` and `library`, or of versions.csv. Digests are the first 16 digits of SHA-256."""

    version: str
    library: str
    experiment: str
    strategy: str
    options: str
    card: str
    # Of the script without its title and the predicted peaks.
    script: str
    requests: int
    # Of the normalized sequence.
    sequence: str
    # Peaks of each step in bytes, separated by spaces.
    allocated: str
    reserved: str

    def program(self):
        return Program(self.version, self.library, self.experiment, self.strategy, self.options, self.card)


class Failed(Exception):
    pass


def programs(version, library=NEWEST_LIBRARY):
    """Versions other than the newest: a sample, of which each rule that differs has several programs."""
    order = [Program(version, library, *key) for key in variants(version, library == NEWEST_LIBRARY)]
    if library == NEWEST_LIBRARY:
        return order
    of_library = [program for program in order if program.experiment.startswith(LIBRARY)]
    order = [program for program in of_library if program.experiment not in PADDED]
    of_padded = [program for program in of_library if program.experiment in PADDED]
    return order[:: 7 if version == NEWEST else 37] + of_padded[:: 3 if version == NEWEST else 12]


def variants(version, is_newest_library):
    """The experiment, strategy, options and card of programs."""
    is_newest = version == NEWEST and is_newest_library
    has_library = version != OLD_VERSION
    experiments = EXPERIMENTS if is_newest else SAMPLED
    for experiment in filter(lambda name: has_library or not name.startswith(LIBRARY), experiments):
        for number, (strategy, keys) in enumerate(strategies(experiment).items()):
            cards = list(CARDS) if is_newest else ["a100", *OLD_CARDS] if version == OLD_VERSION else ["a100"]
            if is_newest and experiment in FEW_CARDS:
                cards = ["a100", cards[1 + number % 3]]
            if experiment in PADDED:
                yield from padded(experiment, strategy, number, is_newest)
                cards = []
            yield from ((experiment, strategy, "fused", card) for card in cards)
            if is_newest and f"{experiment}/{strategy}" in UNFUSED:
                yield experiment, strategy, "foreach", "a100"
                yield experiment, strategy, "for-loop", "a100"
            if f"{experiment}/{strategy}" in MASKED:
                yield experiment, strategy, "masked", "a100"
            if experiment == "offload" and "optimizer" in keys.get("offload", {}):
                yield from ((experiment, strategy, "torchao", card) for card in cards)
            # The library's loss has no checkpoints.
            if cards and ("recompute" in keys or "loss_chunks" in keys and not experiment.startswith(LIBRARY)):
                yield experiment, strategy, "reentrant", "a100"
    for experiment in filter(lambda name: has_library or not name.startswith(LIBRARY), DRAWN):
        for number, strategy in enumerate(strategies(experiment)):
            options = "reentrant" if number % 3 == 2 else "fused"
            yield experiment, strategy, options, list(CARDS)[number % len(CARDS)]
    for experiment in DRAWN_DOCUMENTS if is_newest else []:
        for number, strategy in enumerate(strategies(experiment)):
            options = ["masked", "fused", "masked", "reentrant", "masked"][number % 5]
            yield experiment, strategy, options, list(CARDS)[number % len(CARDS)]


def padded(experiment, strategy, number, is_newest):
    """On one card without attention masks, and on another with them; of other versions one of the two for some strategies."""
    cards = list(CARDS)
    if is_newest and strategy.startswith("packed"):
        yield from ((experiment, strategy, "fused", cards[(number + other) % 4]) for other in (0, 2))
    elif is_newest:
        yield experiment, strategy, "fused", cards[number % 4]
        yield experiment, strategy, "masked", cards[(number + 1 + number // 4) % 4]
    elif number % 3 < 2:
        yield experiment, strategy, ["fused", "masked"][number % 3], "a100"


def strategies(experiment):
    return tomllib.loads((HERE / f"{experiment}.toml").read_text())["strategies"]


def program_text(script):
    """The script without its title and the predicted peaks."""
    lines = script.splitlines(keepends=True)[1:]
    return "".join(line for line in lines if not line.startswith("PREDICTED = "))


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def normalized(text):
    """The sequence with successive releases in order of their numbers: the allocator's state does not depend on theirs."""
    lines, releases = [], []
    for line in text.splitlines() + [None]:
        if line and line.startswith("-"):
            releases.append(int(line[1:]))
            continue
        lines += [f"-{number}" for number in sorted(releases)]
        releases.clear()
        if line:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def export(runner, program, target, work):
    """The script, its text and the predicted sequence, or None if the prediction does not cover the program."""
    folder = work / str(program).replace("/", " ")
    folder.mkdir()
    script, predicted = folder / "train.py", folder / "predicted.txt"
    command = [runner, "export", HERE / f"{program.experiment}.toml", "--run", program.strategy]
    command += ["--target", target, "--out", script, "--requests", predicted]
    versions = [f'plan.torch_version="{program.version}"', f'plan.transformers_version="{program.library}"']
    for setting in [*versions, *OPTIONS[program.options]]:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        if "has no PyTorch script" in done.stderr:
            return None
        raise Failed(done.stderr)
    return script, program_text(script.read_text()), predicted.read_text()


class Recorder:
    def __init__(self, python, runner, work):
        self.python, self.runner, self.work = python, runner, work
        self.nullcuda = work / "nullcuda"
        subprocess.run(["bash", HERE / "nullcuda/build.sh", python, self.nullcuda], check=True)

    def record(self, program, script):
        """The measured sequence and the script's output, a dictionary for each step."""
        requests = script.with_name("requests.txt")
        values = [HERE / "values.py"] if program.experiment.startswith(LIBRARY) else []
        ranks = re.search(r"^RANKS = (\d+)$", script.read_text(), re.MULTILINE)
        values += [HERE / "ranks.py"] if ranks else []
        command = ["bash", HERE / "nullcuda/run.sh", self.python, self.nullcuda, *values, script, "--requests", requests]
        environment = os.environ | {"NULLCUDA_DEVICE": program.card}
        if ranks:
            environment["WORLD_SIZE"] = ranks[1]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise Failed(done.stderr)
        return normalized(requests.read_text()), [json.loads(line) for line in done.stdout.splitlines()]

    def vector(self, program, known):
        """The program's vector, the known one if the script is the same, and a line about it."""
        exported = export(self.runner, program, (CARDS | OLD_CARDS)[program.card], self.work)
        if exported is None:
            return None, f"{program}: not covered"
        script, text, predicted = exported
        if known and known.script == digest(text):
            return known, None
        sequence, steps = self.record(program, script)
        if (program.version, program.library) == (NEWEST, NEWEST_LIBRARY) and str(program) in WHOLE:
            program.file().write_text(sequence)
        peaks = [" ".join(str(step[key]) for step in steps) for key in ("allocated_bytes", "reserved_bytes")]
        vector = Vector(
            *dataclasses.astuple(program), digest(text), sequence.count("+"), digest(sequence), *peaks
        )
        if any(step[f"predicted_{name}_bytes"] != step[f"{name}_bytes"] for step in steps for name in ("allocated", "reserved")):
            return vector, f"{program}: DIFFERENT peaks"
        return vector, f"{program}: {difference(normalized(predicted), sequence)}"


def difference(predicted, measured):
    predicted, measured = predicted.splitlines(), measured.splitlines()
    if predicted == measured:
        return f"as predicted, {len(measured)} requests and releases"
    pairs = zip(predicted + ["end"], measured + ["end"])
    at = next(index for index, (ours, theirs) in enumerate(pairs) if ours != theirs)
    before = " ".join(measured[max(0, at - 8) : at])
    return (
        f"DIFFERENT at line {at + 1} of {len(measured)}, after {before}:\n"
        f"  predicted {' '.join(predicted[at : at + 8])}\n  measured  {' '.join(measured[at : at + 8])}"
    )


def versions_of(python):
    """Those of PyTorch and transformers."""
    code = "from importlib import metadata; print(metadata.version('{}'))"
    outputs = [
        subprocess.run([python, "-c", code.format(name)], capture_output=True, text=True).stdout
        for name in ("torch", "transformers")
    ]
    version, library = [".".join(output.split(".")[:2]) for output in outputs]
    return version, library or NEWEST_LIBRARY


def read():
    """The vectors of all versions."""
    vectors = {}
    for file in filter(Path.exists, [VECTORS, VERSIONS]):
        with open(file, newline="") as lines:
            for line in csv.DictReader(lines):
                vector = Vector(**{"version": NEWEST, "library": NEWEST_LIBRARY} | line)
                vectors[vector.program()] = vector
    return vectors


def write(vectors, versions, order):
    """Writes the file of these versions, and keeps the lines of others in it."""
    newest = (NEWEST, NEWEST_LIBRARY)
    file, fields = VERSIONS, [field.name for field in dataclasses.fields(Vector)]
    if versions == newest:
        file, fields = VECTORS, fields[2:]
    others = [vector for vector in vectors.values() if (vector.version, vector.library) not in (versions, newest)]
    lines = ([] if versions == newest else others) + [vectors[program] for program in order if program in vectors]
    with open(file, "w", newline="") as out:
        writer = csv.DictWriter(out, fields, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(line) for line in sorted(lines, key=lambda line: (line.version, line.library)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="a Python with PyTorch's CUDA build")
    parser.add_argument("--runner", default="target/release/runner")
    parser.add_argument("--only", metavar="REGEX", default="", help='programs such as "gpt/fp32 fused a100"')
    parser.add_argument("--all", action="store_true", help="record unchanged programs too")
    arguments = parser.parse_args()
    SEQUENCES.mkdir(exist_ok=True)
    versions = versions_of(arguments.python)
    vectors, order, failures = read(), list(programs(*versions)), 0
    chosen = [program for program in order if re.search(arguments.only, str(program))]
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        recorder = Recorder(arguments.python, arguments.runner, Path(work))
        known = {} if arguments.all else vectors
        running = {pool.submit(recorder.vector, program, known.get(program)): program for program in chosen}
        for future in concurrent.futures.as_completed(running):
            program = running[future]
            try:
                vector, line = future.result()
            except Failed as error:
                vector, line = None, f"{program}: FAILED: {error}"
            failures += line is not None and ("FAILED" in line or "DIFFERENT" in line)
            vectors.pop(program, None)
            if vector is not None:
                vectors[program] = vector
            if line:
                print(line, flush=True)
            write(vectors, versions, order)
    recorded = sum(program in vectors for program in order)
    print(f"{recorded} of {len(order)} programs recorded, {failures} different from the prediction or failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
