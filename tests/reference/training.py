"""How a run is trained in PyTorch: its gradients, its loss scale, its optimizer.

`run` is what `run.toml` says; `parameters` are tensors by the names that they have in a dump.
"""

import torch

import states
from schedules import follow_schedule
from transformer import HALVES, forward


def accumulate_gradients(run, parameters, scaler, tokens, targets, seeds=None, model=None):
    """Adds up the scaled gradients of a step's micro-batches, in order. Their mean loss, over tokens i64[B, T].

    `seeds` i32[B, 2] are there where some elements are dropped. `model` takes the place of `forward`, which it may have
    compiled.
    """
    micro_batch = -(-run.batch_size // run.accumulate)
    half = HALVES.get(run.precision)
    losses = []
    # Those that something is told from.
    counted = (targets >= 0).sum().item()
    parts = [part.split(micro_batch) for part in (tokens, targets, seeds) if part is not None]
    for part in zip(*parts):
        # What is all in 16 bits has nothing to cast.
        casts = half is not None and run.residual == "fp32"
        with torch.autocast(tokens.device.type, dtype=half, enabled=casts):
            # The mean over what is told from, and so each part counts for as much of that as it has.
            loss = (model or forward)(run, parameters, *part) / (counted / (part[1] >= 0).sum().item())
        if loss.requires_grad:
            scaler.scale(loss).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def make_scaler(run, device):
    """What scales the loss of half precision; without a loss scale, one that does nothing."""
    scale = run.loss_scale
    if scale is None:
        return torch.amp.GradScaler(device, enabled=False)
    if "growth" not in scale:
        return FixedScaler(device, init_scale=scale["initial"])
    return torch.amp.GradScaler(
        device,
        init_scale=scale["initial"],
        growth_factor=scale["growth"],
        backoff_factor=scale["backoff"],
        growth_interval=scale["interval"],
    )


class FixedScaler(torch.amp.GradScaler):
    """Skips steps that overflow, and leaves the scale as it is."""

    def update(self):
        super().update(self.get_scale())


def make_optimizer(run, parameters):
    """It follows the run's schedule."""
    optimizer = optimizer_of(run, parameters)
    follow_schedule(run, optimizer)
    return optimizer


def optimizer_of(run, parameters):
    update = run.update
    decays = {name for name, tensor in parameters.items() if update["decay"] == "all" or tensor.dim() > 1}
    groups = [
        {"params": [parameters[name] for name in decays], "weight_decay": update["weight_decay"]},
        {"params": [parameters[name] for name in parameters.keys() - decays], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    keeps_states = run.optimizer == "adamw" or update["momentum"] > 0
    # PyTorch's own keep states in the type of parameters, and no copy of these.
    is_native = not run.has_master_weights and run.optimizer_state == run.params
    if not is_native and (keeps_states or run.params != "fp32"):
        return {"adamw": states.AdamW, "sgd": states.SGD}[run.optimizer](run, parameters, groups)
    if run.optimizer == "sgd":
        momentum = {"momentum": update["momentum"], "nesterov": update["nesterov"]}
        return torch.optim.SGD(groups, lr=update["lr"], **momentum, fused=True)
    betas = (update["beta1"], update["beta2"])
    return torch.optim.AdamW(groups, lr=update["lr"], betas=betas, eps=update["epsilon"], fused=True)
