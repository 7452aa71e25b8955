#!/usr/bin/env python3
"""Repeats a run of `runner` in PyTorch, from nothing but the files of its dump, and says how far apart the two are.

    runner sweep experiments/quickstart.toml --dump dumps
    python tests/reference/pytorch.py dumps/<run id>

Needs Python 3.11, torch and safetensors. Prints loss and gradient norm of every step, the relative distance of the
gradients at the first and the last step and of the final parameters, and the speed of both. The distance of two
tensors is the norm of their difference over the norm of PyTorch's.

Exit codes: 0; 1 if `--tolerance` was given and a loss or a gradient is further off; 2 if the run cannot be repeated.
"""

import argparse
import csv
import math
import statistics
import sys
import time
import tomllib
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file, save_file
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(f"error: {error}: this script needs torch and safetensors", file=sys.stderr)
    sys.exit(2)

LAYER_NORM_EPSILON = 1e-5

# What a strategy may say without changing a number: where memory comes from and when it is given back.
MEMORY_ONLY = {"release", "gradients", "allocator", "evaluation_pass"}


class CannotRepeat(Exception):
    """Why a run cannot be repeated here."""


def main():
    arguments = parse_arguments()
    try:
        run = Run(arguments.folder)
        dump = Dump(arguments.folder)
        repeated = train(run, dump)
        if arguments.vectors:
            write_vectors(arguments.vectors, repeated)
    except CannotRepeat as error:
        fail(error)
    except (KeyError, ValueError) as error:
        fail(f"{arguments.folder} is not the dump of a run: {error!r}")
    print(run.title())
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
        help="end with exit code 1 if a loss or a gradient is further off than this (1e-5 where T is left out)",
    )
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="write PyTorch's losses and gradients to FILE")
    return parser.parse_args()


# What the run was


class Run:
    """The configuration in `run.toml`, as far as it decides which numbers come out, and the threads to use."""

    def __init__(self, folder):
        config = read_toml(folder / "run.toml")
        model = only_variant(config, "model", "transformer")
        expect_keys("model", model, {"layers", "heads", "d_model", "context", "vocabulary"})
        self.layers, self.heads = model["layers"], model["heads"]
        self.d_model, self.context, self.vocabulary = model["d_model"], model["context"], model["vocabulary"]

        train = config["train"]
        expect_keys("train", train, {"batch_size", "clip_norm", "seed", "optimizer"})
        self.batch_size = train["batch_size"]
        self.clip_norm = None if train["clip_norm"] == "off" else train["clip_norm"]
        self.adamw = only_variant(train, "optimizer", "adamw")
        expect_keys("adamw", self.adamw, {"lr", "beta1", "beta2", "epsilon", "weight_decay", "decay"})
        expect_word("decay", self.adamw["decay"], {"matrices", "all"})
        self.warmup_steps = config["measure"]["warmup_steps"]

        [(self.name, strategy)] = config["strategies"].items()
        expect_keys("strategy", strategy, {"accumulate", "recompute"} | MEMORY_ONLY)
        self.accumulate = strategy["accumulate"]
        expect_word("recompute", strategy["recompute"], {"none", "block"})
        self.recompute = strategy["recompute"] == "block"

        target = read_toml(folder / "target.toml")
        expect_word("kind", target["kind"], {"cpu"})
        self.threads = target["threads"]

    def title(self):
        return (
            f"{self.name}: {self.layers} layers, d_model {self.d_model}, {self.heads} heads, "
            f"context {self.context}, vocabulary {self.vocabulary}\n"
            f"batch {self.batch_size}, accumulate {self.accumulate}, "
            f"recompute {'block' if self.recompute else 'none'}, clip_norm {self.clip_norm or 'off'}, "
            f"{self.threads} threads, PyTorch {torch.__version__}\n"
        )


def only_variant(table, key, known):
    variants = list(table[key])
    if variants != [known]:
        raise CannotRepeat(f"{key} is `{', '.join(variants)}`; this script knows `{known}`")
    return table[key][known]


def expect_keys(name, table, known):
    for key in table.keys() - known:
        raise CannotRepeat(f"this script does not know `{key} = {table[key]!r}` ({name})")


def expect_word(key, word, known):
    if word not in known:
        raise CannotRepeat(f"this script does not know `{key} = {word!r}`")


def read_toml(path):
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise CannotRepeat(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise CannotRepeat(f"{path} is no TOML file: {error}") from error


# What the run started from, and what came of it


class Dump:
    """The tensors and figures that the run left. Steps are counted from 1."""

    def __init__(self, folder):
        self.initial = read_tensors(folder / "initial.safetensors")
        batches = read_tensors(folder / "batches.safetensors")
        self.tokens, self.targets = batches["tokens"].long(), batches["targets"].long()
        self.gradients = by_step(read_tensors(folder / "gradients.safetensors"))
        self.final = read_tensors(folder / "final.safetensors")
        steps = read_csv(folder / "steps.csv")
        self.losses = [float(step["loss"]) for step in steps]
        self.gradient_norms = [float(step["grad_norm"]) for step in steps]
        self.seconds = [float(step["ms"]) / 1e3 for step in steps]
        if len(steps) != len(self.tokens):
            raise CannotRepeat(f"{folder} has batches of {len(self.tokens)} steps and figures of {len(steps)}")

    @property
    def steps(self):
        return len(self.tokens)


def read_tensors(path):
    try:
        return load_file(path)
    except Exception as error:  # The library's own errors share no base class with those of files.
        raise CannotRepeat(f"cannot read {path}: {error}") from error


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
    """What came of the run in PyTorch, in the shape of `Dump`."""

    def __init__(self):
        self.losses, self.gradient_norms, self.seconds = [], [], []
        self.gradients = {}
        self.final = {}


def train(run, dump):
    """B micro-batch, T context: each step takes its batch as `accumulate` micro-batches, in order."""
    torch.set_num_threads(run.threads)
    parameters = {name: tensor.clone().requires_grad_() for name, tensor in dump.initial.items()}
    optimizer = make_optimizer(run, parameters)
    micro_batch = run.batch_size // run.accumulate
    repeated = Repeated()
    for step in range(1, dump.steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        tokens, targets = dump.tokens[step - 1], dump.targets[step - 1]
        for part in zip(tokens.split(micro_batch), targets.split(micro_batch)):
            part_loss = forward(run, parameters, *part) / run.accumulate
            part_loss.backward()
            loss += part_loss.item()
        until_gradients = time.perf_counter() - began

        # Not timed, as in the run itself: what is only looked at.
        if step in dump.gradients:
            repeated.gradients[step] = {name: tensor.grad.clone() for name, tensor in parameters.items()}
        if run.clip_norm is None:
            # PyTorch's own norm, which sums in f32, is 6e-6 off where tensors are large.
            squares = [tensor.grad.double().square().sum() for tensor in parameters.values()]
            norm = torch.stack(squares).sum().sqrt()

        began = time.perf_counter()
        if run.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), run.clip_norm)
        optimizer.step()
        repeated.seconds.append(until_gradients + time.perf_counter() - began)
        repeated.losses.append(loss)
        repeated.gradient_norms.append(norm.item())
    repeated.final = {name: tensor.detach() for name, tensor in parameters.items()}
    return repeated


def make_optimizer(run, parameters):
    decays = {name for name, tensor in parameters.items() if run.adamw["decay"] == "all" or tensor.dim() > 1}
    groups = [
        {"params": [parameters[name] for name in decays], "weight_decay": run.adamw["weight_decay"]},
        {"params": [parameters[name] for name in parameters.keys() - decays], "weight_decay": 0.0},
    ]
    betas = (run.adamw["beta1"], run.adamw["beta2"])
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=run.adamw["lr"], betas=betas, eps=run.adamw["epsilon"], fused=True)


def forward(run, parameters, tokens, targets):
    """GPT-2's decoder with the head tied to the token embedding; the mean loss over tokens i64[B, T]."""
    table = parameters["embedding.table"]
    x = F.embedding(tokens, table) + parameters["embedding.positions"]
    for layer in range(run.layers):
        if run.recompute:
            x = checkpoint(block, run, parameters, f"blocks.{layer}", x, use_reentrant=False)
        else:
            x = block(run, parameters, f"blocks.{layer}", x)
    logits = F.linear(norm(parameters, "head", x), table)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def block(run, parameters, name, x):
    x = x + attention(run, parameters, f"{name}.attention", x)
    return x + mlp(parameters, f"{name}.mlp", x)


def attention(run, parameters, name, x):
    qkv = linear(parameters, f"{name}.qkv", norm(parameters, name, x))
    # q, k and v lie side by side, each with its heads side by side: [B, H, T, C / H] each.
    heads = (part.unflatten(-1, (run.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    seen = F.scaled_dot_product_attention(*heads, is_causal=True)
    return linear(parameters, f"{name}.out", seen.transpose(1, 2).flatten(2))


def mlp(parameters, name, x):
    hidden = F.gelu(linear(parameters, f"{name}.up", norm(parameters, name, x)), approximate="tanh")
    return linear(parameters, f"{name}.out", hidden)


def norm(parameters, name, x):
    weight, bias = parameters[f"{name}.norm.weight"], parameters[f"{name}.norm.bias"]
    return F.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPSILON)


def linear(parameters, name, x):
    return F.linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])


# How far apart the two are


def print_steps(dump, repeated):
    print("step  loss: runner     PyTorch  difference  gradient norm: runner     PyTorch")
    for step in range(dump.steps):
        ours, theirs = dump.losses[step], repeated.losses[step]
        norms = f"{dump.gradient_norms[step]:21.6f}  {repeated.gradient_norms[step]:10.6f}"
        print(f"{step + 1:4}  {ours:12.6f}  {theirs:10.6f}  {relative(ours, theirs):10.1e}  {norms}")
    print()


def print_distances(dump, repeated):
    """Prints the relative distances. Returns the furthest of losses and of gradients by tensor."""
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
    # What is not a number comes first.
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
    print(f"tokens/s: runner {speeds[0]:.0f}, PyTorch {speeds[1]:.0f}")
    print("The two were not measured in the same minutes: for a comparison of speed, let them take turns.")


def write_vectors(path, repeated):
    """What PyTorch says: `losses` and `gradient_norms` f32[steps], and gradients as in the dump."""
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
