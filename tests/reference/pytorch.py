#!/usr/bin/env python3
"""Repeats a run of `runner` in PyTorch from the files of its dump alone, and compares the results.

    runner sweep experiments/quickstart.toml --dump dumps
    python tests/reference/pytorch.py dumps/<run id>

    python tests/reference/pytorch.py dumps/<run id> --speed

Needs Python 3.11, torch and safetensors. Prints loss and gradient norm of every step, the relative distance of the
gradients at the first and the last step and of the final parameters, and the speed of both. The distance of two
tensors is the norm of their difference over the norm of PyTorch's.

Exit codes: 0 success; 1 if a loss or a gradient is further off than `--tolerance`; 2 if the run cannot be repeated.
"""

import argparse
import csv
import json
import math
import statistics
import sys
import time
from pathlib import Path

from resident import Resident

try:
    import torch
    import torch.nn.functional as F

    AFTER_IMPORT = Resident()  # The resident set after the import of torch.
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"error: {error}: this script needs torch and safetensors", file=sys.stderr)
    sys.exit(2)

from run_toml import CannotRepeat, Run, expect_word, read_toml
from storage import as_numbers
from training import accumulate_gradients, make_optimizer, make_scaler


def main():
    arguments = parse_arguments()
    try:
        run = Run(arguments.folder / "run.toml")
        torch.set_num_threads(read_threads(arguments.folder))
        if arguments.speed:
            print(json.dumps(measure_speed(run, arguments.folder)))
            return
        dump = Dump(run, arguments.folder)
        model = None
        if arguments.hugging_face:
            from hugging_face import HuggingFace

            if dump.seeds[0] is not None:
                raise CannotRepeat("dropout: Hugging Face's model draws other dropout masks; write dropout = false")
            model = HuggingFace(arguments.hugging_face)
            # The checkpoint's own parameters, not the dump's: this also tests the run's conversion.
            dump.initial = model.initial(dump.initial)
        repeated = train(run, dump, model)
        if arguments.vectors:
            write_vectors(arguments.vectors, repeated)
    except CannotRepeat as error:
        fail(error)
    except (KeyError, ValueError) as error:
        fail(f"{arguments.folder} is not the dump of a run: {error!r}")
    print(f"{run.title()}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}\n")
    print_steps(dump, repeated)
    furthest = print_distances(dump, repeated)
    print_speeds(run, dump, repeated)
    if arguments.tolerance is not None and not furthest <= arguments.tolerance:
        print(f"further apart than {arguments.tolerance:g}: {furthest:.1e}")
        sys.exit(1)


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Repeats a dumped run in PyTorch and compares the two.")
    parser.add_argument("folder", type=Path, help="the folder of one run, as `runner sweep --dump DIR` writes it")
    parser.add_argument(
        "--tolerance", type=float, nargs="?", const=1e-5, metavar="T",
        help="exit with code 1 if a loss or a gradient is further off than T (1e-5 if T is omitted)",
    )
    parser.add_argument(
        "--speed", action="store_true",
        help="without comparing results, train at PyTorch's full speed; print speed and memory as one line of JSON",
    )
    parser.add_argument(
        "--hugging-face", type=Path, metavar="FOLDER",
        help="train the Hugging Face model in FOLDER from its own weights; needs transformers",
    )
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="write PyTorch's losses and gradients to FILE")
    return parser.parse_args()


def read_threads(folder):
    """The number of threads of the run's CPU target."""
    target = read_toml(folder / "target.toml")
    expect_word("kind", target["kind"], {"cpu"})
    return target["threads"]


# The run's inputs and results


class Dump:
    """The tensors and figures of a dump. Steps are counted from 1."""

    def __init__(self, run, folder):
        self.initial = as_numbers(run, read_tensors(folder / "initial.safetensors"))
        self.tokens, self.targets, self.seeds = read_batches(folder)
        self.gradients = by_step(read_tensors(folder / "gradients.safetensors"))
        self.final = as_numbers(run, read_tensors(folder / "final.safetensors"))
        steps = read_csv(folder / "steps.csv")
        self.losses = [float(step["loss"]) for step in steps]
        norm = (lambda step: math.nan) if run.is_inference else (lambda step: float(step["grad_norm"]))
        self.gradient_norms = [norm(step) for step in steps]
        self.seconds = [float(step["ms"]) / 1e3 for step in steps]
        if len(steps) != len(self.tokens):
            raise CannotRepeat(f"{folder} has batches of {len(self.tokens)} steps but figures of {len(steps)}")

    @property
    def steps(self):
        return len(self.tokens)


def read_tensors(path):
    try:
        return load_file(path)
    except Exception as error:  # The library's errors have no common base class with OSError.
        raise CannotRepeat(f"cannot read {path}: {error}") from error


def read_batches(folder):
    """Per step: tokens and targets, each i64[B, T], and dropout seeds, i32[B, 2], or None. Of a list of layers: its input
    f32[B, ..], and targets of any shape, or None."""
    batches = read_tensors(folder / "batches.safetensors")
    if "input" in batches:
        nothing = [None] * len(batches["input"])
        targets = batches.get("targets", nothing)
        targets = targets.long() if "targets" in batches and not targets.is_floating_point() else targets
        return batches["input"], targets, batches.get("seeds", nothing)
    tokens, targets = batches["tokens"].long(), batches["targets"].long()
    seeds = batches.get("seeds", [None] * len(tokens))
    if "starts" not in batches:
        return tokens, targets, seeds
    if "seeds" in batches:
        raise CannotRepeat("dropout: packed documents are separate samples in this script, with other dropout masks")
    steps = [unpacked(*step) for step in zip(tokens, targets, batches["starts"])]
    return *zip(*steps), seeds


def unpacked(tokens, targets, starts):
    """Each document as a sample of its own, padded to the context."""
    documents = []
    for sample in zip(tokens, targets, starts):
        for start in sample[2].unique().tolist():
            places = (sample[2] == start) & (sample[1] >= 0)
            rest = places.numel() - places.sum().item()
            if places.any():
                documents.append([F.pad(sample[0][places], (0, rest)), F.pad(sample[1][places], (0, rest), value=-1)])
    return tuple(torch.stack(part) for part in zip(*documents))


def by_step(tensors):
    """`{"5.head.norm.bias": gradient}` as `{5: {"head.norm.bias": gradient}}`."""
    steps = {}
    for name, tensor in tensors.items():
        step, parameter = name.split(".", 1)
        steps.setdefault(int(step), {})[parameter] = tensor
    return steps


def read_csv(path):
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise CannotRepeat(f"cannot read {path}: {error.strerror}") from error


# The same run in PyTorch


class Repeated:
    """The results of the run in PyTorch, in the shape of `Dump`."""

    def __init__(self):
        self.losses, self.gradient_norms, self.seconds = [], [], []
        self.gradients = {}
        self.final = {}


def train(run, dump, model=None):
    """Trains the run. `model` replaces `forward`."""
    parameters = {name: tensor.clone().requires_grad_(run.is_trained(name)) for name, tensor in dump.initial.items()}
    if run.is_inference:
        return infer(run, parameters, dump)
    trained = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
    optimizer = make_optimizer(run, trained)
    scaler = make_scaler(run, "cpu")
    repeated = Repeated()
    for step in range(1, dump.steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        batch = dump.tokens[step - 1], dump.targets[step - 1], dump.seeds[step - 1]
        loss = accumulate_gradients(run, parameters, scaler, *batch, model).item()
        scaler.unscale_(optimizer)
        until_gradients = time.perf_counter() - began

        # Not timed, as in the run itself: records for the comparison.
        if step in dump.gradients and all(tensor.grad.isfinite().all() for tensor in trained.values()):
            repeated.gradients[step] = {name: tensor.grad.clone() for name, tensor in trained.items()}
        if run.clip_norm is None:
            # PyTorch's own norm sums in f32, with an error of 6e-6 for large tensors.
            norm = norm_of(trained)

        began = time.perf_counter()
        if run.clip_norm is not None:
            norm = clip(run, trained)
        scaler.step(optimizer)
        scaler.update()
        repeated.seconds.append(until_gradients + time.perf_counter() - began)
        repeated.losses.append(loss)
        repeated.gradient_norms.append(norm.item())
    repeated.final = {name: tensor.detach() for name, tensor in parameters.items()}
    return repeated


def infer(run, parameters, dump):
    repeated = Repeated()
    for batch in zip(dump.tokens, dump.targets):
        began = time.perf_counter()
        loss = accumulate_gradients(run, parameters, make_scaler(run, "cpu"), *batch).item()
        repeated.seconds.append(time.perf_counter() - began)
        repeated.losses.append(loss)
        repeated.gradient_norms.append(math.nan)
    repeated.final = parameters
    return repeated


def norm_of(trained):
    return torch.stack([tensor.grad.double().square().sum() for tensor in trained.values()]).sum().sqrt()


def clip(run, trained):
    """Clips the gradients and returns their norm before. The run does not round clipped 16-bit gradients."""
    if run.params == "fp32":
        return torch.nn.utils.clip_grad_norm_(trained.values(), run.clip_norm)
    raise CannotRepeat("PyTorch rounds clipped 16-bit gradients, the run does not; write clip_norm = \"off\"")


# PyTorch's speed and memory


def measure_speed(run, folder):
    """Trains at full speed, with only the memory that training needs."""
    if run.is_inference:
        raise CannotRepeat('measure.what = "inference": --speed times only training')
    if run.recomputes_otherwise:
        raise CannotRepeat('recompute: this script supports only "none" and "block"')
    initial = as_numbers(run, read_tensors(folder / "initial.safetensors"))
    # Copied out of the mapped file, whose pages are released after the last tensor.
    parameters = {name: initial.pop(name).clone().requires_grad_(run.is_trained(name)) for name in list(initial)}
    trained = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
    optimizer = make_optimizer(run, trained)
    scaler = make_scaler(run, "cpu")
    seconds = []
    for tokens, targets, seeds in zip(*read_batches(folder)):
        if seeds is not None:
            raise CannotRepeat("dropout: this script's dropout is too slow for a comparison of speed")
        began = time.perf_counter()
        accumulate_gradients(run, parameters, scaler, tokens, targets)
        scaler.unscale_(optimizer)
        if run.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained.values(), run.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    step = statistics.median(seconds[run.warmup_steps :])
    return {
        "per_s": run.batch_size * run.context / step,
        "peak_resident_bytes": Resident().peak,
        "resident_after_import_bytes": AFTER_IMPORT.now,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


# Comparison


def print_steps(dump, repeated):
    print("step  loss: runner     PyTorch  difference  gradient norm: runner     PyTorch")
    for step in range(dump.steps):
        ours, theirs = dump.losses[step], repeated.losses[step]
        norms = f"{dump.gradient_norms[step]:21.6f}  {repeated.gradient_norms[step]:10.6f}"
        print(f"{step + 1:4}  {ours:12.6f}  {theirs:10.6f}  {relative(ours, theirs):10.1e}  {norms}")
    print()


def print_distances(dump, repeated):
    """Prints the relative distances. Returns the largest over losses and gradient tensors, or NaN."""
    losses = [relative(*pair) for pair in zip(dump.losses, repeated.losses)]
    furthest = [*losses]
    print("relative distance          all   furthest tensor")
    for step in repeated.gradients:
        distances = by_tensor(dump.gradients[step], repeated.gradients[step])
        print_distance(f"gradients, step {step}", dump.gradients[step], repeated.gradients[step], distances)
        furthest.extend(distances.values())
    distances = by_tensor(dump.final, repeated.final)
    print_distance("final parameters", dump.final, repeated.final, distances)
    print()
    return math.nan if any(math.isnan(distance) for distance in furthest) else max(furthest)


def print_distance(title, ours, theirs, distances):
    flat = [torch.cat([tensors[name].flatten() for name in theirs]) for tensors in (ours, theirs)]
    # NaN comes first.
    name = max(distances, key=lambda name: (math.isnan(distances[name]), distances[name]))
    print(f"{title:22} {distance(*flat):7.1e}   {distances[name]:7.1e}  {name}")


def by_tensor(ours, theirs):
    return {name: distance(ours[name], theirs[name]) for name in theirs}


def distance(ours, theirs):
    return relative_norm((ours.double() - theirs.double()).norm().item(), theirs.double().norm().item())


def relative(ours, theirs):
    return relative_norm(abs(ours - theirs), abs(theirs))


def relative_norm(difference, norm):
    if difference == 0:
        return 0.0
    return difference / norm if norm else math.inf


def print_speeds(run, dump, repeated):
    tokens = run.batch_size * run.context
    speeds = [tokens / statistics.median(seconds[run.warmup_steps:]) for seconds in (dump.seconds, repeated.seconds)]
    unit = "samples" if run.sequential else "tokens"
    print(f"{unit}/s: runner {speeds[0]:.0f}, PyTorch {speeds[1]:.0f}")
    print("The two were measured at different times: to compare speeds, alternate them with speed.py.")


def write_vectors(path, repeated):
    """Writes PyTorch's `losses` and `gradient_norms`, f32[steps], and gradients by their names in the dump."""
    tensors = {
        "losses": torch.tensor(repeated.losses, dtype=torch.float32),
        "gradient_norms": torch.tensor(repeated.gradient_norms, dtype=torch.float32),
    }
    for step, gradients in repeated.gradients.items():
        tensors.update({f"{step}.{name}": gradient for name, gradient in gradients.items()})
    try:
        save_file(tensors, path, metadata={"made_by": f"PyTorch {torch.__version__}"})
    except Exception as error:  # As in `read_tensors`.
        raise CannotRepeat(f"cannot write {path}: {error}") from error


if __name__ == "__main__":
    main()
