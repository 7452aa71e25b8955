"""How a run is trained in PyTorch: its gradients, its loss scale, its optimizer.

`run` is what `run.toml` says; `parameters` are tensors by the names that they have in a dump.
"""

from fnmatch import fnmatchcase

import torch

import states
from muon import Muon, is_matrix
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
        own = (part[1] >= 0).sum().item()
        if own == 0:
            continue
        # What is all in 16 bits has nothing to cast.
        casts = half is not None and run.residual == "fp32"
        with torch.autocast(tokens.device.type, dtype=half, enabled=casts):
            # The mean over what is told from, and so each part counts for as much of that as it has.
            loss = (model or forward)(run, parameters, *part) / (counted / own)
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
    # As few as there can be: a fused update takes those of a group together.
    by_keys = {}
    for name, tensor in parameters.items():
        by_keys.setdefault((*own_keys(run, name, tensor), is_matrix(name, tensor)), []).append(tensor)
    groups = [{"params": tensors, "lr": lr, "weight_decay": decay} for (lr, decay, _), tensors in by_keys.items()]
    keeps_states = run.optimizer != "sgd" or update["momentum"] > 0
    # PyTorch's own keep states in the type of parameters, and no copy of these.
    is_native = not run.has_master_weights and run.optimizer_state == run.params
    is_native = is_native or (not keeps_states or run.optimizer == "adafactor") and run.params == "fp32"
    if not is_native or run.optimizer not in PYTORCHS_OWN:
        return OPTIMIZERS[run.optimizer](run, parameters, groups)
    return PYTORCHS_OWN[run.optimizer](groups, update)


def own_keys(run, name, tensor):
    """The learning rate and the weight decay of a parameter: of the first group that matches it, or of the rest."""
    update = run.update
    if run.optimizer == "muon" and not is_matrix(name, tensor):
        update = update["adamw"]
    decays = update.get("decay") == "all" or tensor.dim() > 1
    lr, decay = update["lr"], update["weight_decay"] if decays else 0.0
    for group in run.groups:
        parts = name.split(".")
        if any(fnmatchcase(".".join(parts[:end]), group["match"]) for end in range(1, len(parts) + 1)):
            return group.get("lr", lr), group.get("weight_decay", decay)
    return lr, decay


def adam_of(optimizer):
    def made(groups, update):
        betas = (update["beta1"], update["beta2"])
        return optimizer(groups, lr=update["lr"], betas=betas, eps=update["epsilon"], fused=True)

    return made


def sgd_of(groups, update):
    momentum = {"momentum": update["momentum"], "nesterov": update["nesterov"]}
    return torch.optim.SGD(groups, lr=update["lr"], **momentum, fused=True)


def adafactor_of(groups, update):
    own = {"eps": (update["epsilon"], update["scale_epsilon"]), "d": update["clip_threshold"]}
    return torch.optim.Adafactor(groups, lr=update["lr"], beta2_decay=update["beta2_decay"], **own)


OPTIMIZERS = states.OPTIMIZERS | {"muon": Muon}

# From groups of parameters and the run's keys.
PYTORCHS_OWN = {"adafactor": adafactor_of, "adam": adam_of(torch.optim.Adam), "adamw": adam_of(torch.optim.AdamW), "sgd": sgd_of}
