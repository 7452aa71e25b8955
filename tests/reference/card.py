#!/usr/bin/env python3
"""Trains a run's model in PyTorch on a GPU, at PyTorch's full speed, and prints one line of JSON.

    python tests/reference/card.py results/gpt2-124m/<digits>/<run id>/1/run.toml
    python tests/reference/card.py results/gpt2-124m/<digits>/<run id>/1/run.toml --compile

Needs Python 3.11 and torch, and a GPU unless `--device cpu`. The result is PyTorch's speed and memory for a run: the
model of `run.toml`, with its precision, batch size, accumulation, recomputation, clipping and optimizer. Parameters and
tokens are random: they affect neither speed nor memory. To compare losses, repeat a dump with `pytorch.py`.

An additional, untimed step is profiled to find PyTorch's attention kernels.

Times cover whole optimizer steps, with the device synchronised at both ends and one batch per step uploaded from pinned
memory. Peaks are the caching allocator's in the timed steps.
"""

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path

try:
    import torch
except ImportError as error:
    print(f"error: {error}: this script needs torch", file=sys.stderr)
    sys.exit(2)

from training import accumulate_gradients, make_optimizer, make_scaler
from transformer import forward
from run_toml import CannotRepeat, Run

DEVIATION = 0.02


def main():
    arguments = parse_arguments()
    try:
        run = Run(arguments.run)
        if any(run.dropout.values()):
            raise CannotRepeat("dropout: this script's dropout is too slow for a comparison of speed")
    except (CannotRepeat, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    torch.backends.cuda.matmul.allow_tf32 = run.precision == "tf32"
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    parameters = make_parameters(run, device)
    take_step = make_step(run, parameters, device, arguments)
    seconds = measure(take_step, device, arguments)
    print(json.dumps(report(run, device, arguments, seconds) | {"attention": attention_of(take_step)}))


def parse_arguments():
    parser = argparse.ArgumentParser(description="Measures the speed and memory of a run's model in PyTorch on a GPU.")
    parser.add_argument("run", type=Path, metavar="run.toml")
    parser.add_argument("--compile", action="store_true", help="compile the forward pass with torch.compile")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--warmup", type=int, default=5, metavar="N", help="untimed steps before the timed ones (5)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="timed steps (20)")
    return parser.parse_args()


def make_parameters(run, device):
    """Parameters initialised as in GPT-2, by the names of a dump."""
    shapes = {"embedding.table": (run.vocabulary, run.d_model), "embedding.positions": (run.context, run.d_model)}
    for layer in range(run.layers):
        shapes |= linear(f"blocks.{layer}.attention.qkv", 3 * run.d_model, run.d_model)
        shapes |= linear(f"blocks.{layer}.attention.out", run.d_model, run.d_model)
        shapes |= linear(f"blocks.{layer}.mlp.up", 4 * run.d_model, run.d_model)
        shapes |= linear(f"blocks.{layer}.mlp.out", run.d_model, 4 * run.d_model)
        for part in ("attention", "mlp"):
            shapes |= norm(f"blocks.{layer}.{part}", run.d_model)
    shapes |= norm("head", run.d_model)
    parameters = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            tensor = torch.randn(shape, device=device) * DEVIATION
        else:
            tensor = torch.full(shape, float(name.endswith("norm.weight")), device=device)
        parameters[name] = tensor.requires_grad_(run.is_trained(name))
    return parameters


def linear(name, out, inner):
    return {f"{name}.weight": (out, inner), f"{name}.bias": (out,)}


def norm(name, channels):
    return {f"{name}.norm.weight": (channels,), f"{name}.norm.bias": (channels,)}


def make_step(run, parameters, device, arguments):
    """A function that takes one optimizer step."""
    optimizer = make_optimizer(run, parameters)
    scaler = make_scaler(run, device.type)
    model = torch.compile(forward) if arguments.compile else forward
    tokens = torch.randint(run.vocabulary, (run.batch_size, run.context + 1))
    if device.type == "cuda":
        tokens = tokens.pin_memory()

    def take_step():
        batch = tokens.to(device, non_blocking=True)
        accumulate_gradients(run, parameters, scaler, batch[:, :-1], batch[:, 1:], model=model)
        if run.clip_norm is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(parameters.values(), run.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return take_step


def measure(take_step, device, arguments):
    """Seconds of each timed step."""
    seconds = []
    for step in range(arguments.warmup + arguments.steps):
        if step == arguments.warmup and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        synchronize(device)
        began = time.perf_counter()
        take_step()
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    return seconds[arguments.warmup :]


def attention_of(take_step):
    """PyTorch's attention backends in a step, by operator name: flash, cudnn, efficient or math."""
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            take_step()
    except RuntimeError as error:
        # The measurement is valid without it.
        return f"unknown: {error}"
    operator = re.compile(r"_scaled_dot_product_(?:attention_)?(flash|cudnn|efficient|math)")
    found = {match[1] for event in profile.key_averages() if (match := operator.search(event.key))}
    return " and ".join(sorted(found)) or "none of PyTorch's own operators"


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(run, device, arguments, seconds):
    median = statistics.median(seconds)
    on_card = device.type == "cuda"
    return {
        "peer": f"PyTorch {torch.__version__}" + (" compiled" if arguments.compile else " eager"),
        "device": torch.cuda.get_device_name(device) if on_card else "cpu",
        "strategy": run.name,
        "step_ms_median": round(median * 1e3, 4),
        "step_ms_min": round(min(seconds) * 1e3, 4),
        "tokens_per_s": round(run.batch_size * run.context / median, 1),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_card else None,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_card else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_card else None,
    }


if __name__ == "__main__":
    main()
