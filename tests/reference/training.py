"""Training of a run in PyTorch: gradients, loss scale, optimizer.

`run` is the configuration in `run.toml`; `parameters` are tensors by their names in a dump.
"""

from fnmatch import fnmatchcase

import torch

import states
from muon import Muon, is_matrix
from schedules import follow_schedule
from sequential import forward as layers_in_a_list
from sequential import is_sum
from transformer import HALVES, forward


def accumulate_gradients(run, parameters, scaler, tokens, targets, seeds=None, model=None):
    """Accumulates the scaled gradients of a step's micro-batches, in order. Returns the mean loss, or the sum.

    `tokens` and `targets` are i64[B, T]; targets below 0 are padding.

    `seeds` i32[B, 2] are the dropout seeds, if any. `model` replaces `forward`, for example by its compiled form.
    """
    micro_batch = -(-run.batch_size // run.accumulate)
    half = HALVES.get(run.precision)
    losses = []
    # Targets that are not padding.
    counted = counted_targets(targets)
    parts = [[None] * run.accumulate if part is None else part.split(micro_batch) for part in (tokens, targets, seeds)]
    for part in zip(*parts):
        # To a sum, each micro-batch adds its own.
        own = counted if is_sum(run) else counted_targets(part[1])
        if own == 0:
            continue
        # If the residual stream is in 16 bits too, there is nothing to cast.
        casts = half is not None and run.residual == "fp32"
        with torch.autocast(tokens.device.type, dtype=half, enabled=casts):
            # Weighted by the micro-batch's share of targets, so that the sum is the mean over all targets.
            own_forward = layers_in_a_list if run.sequential else forward
            loss = (model or own_forward)(run, parameters, *part) / (counted / own)
        if loss.requires_grad:
            scaler.scale(loss).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def counted_targets(targets):
    """The number of targets that are not padding. Targets other than classes have none; a sum has no targets."""
    if targets is None:
        return 1
    return targets.numel() if targets.is_floating_point() else (targets >= 0).sum().item()


def make_scaler(run, device):
    """The loss scaler; without a loss scale, a disabled one."""
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
    """A constant scale that skips steps with overflow."""

    def update(self):
        super().update(self.get_scale())


def make_optimizer(run, parameters):
    """The optimizer, with the run's learning rate schedule."""
    optimizer = optimizer_of(run, parameters)
    follow_schedule(run, optimizer)
    return optimizer


def optimizer_of(run, parameters):
    update = run.update
    # As few groups as possible: a fused update handles a group at once.
    by_keys = {}
    for name, tensor in parameters.items():
        by_keys.setdefault((*own_keys(run, name, tensor), is_matrix(name, tensor)), []).append(tensor)
    groups = [{"params": tensors, "lr": lr, "weight_decay": decay} for (lr, decay, _), tensors in by_keys.items()]
    keeps_states = run.optimizer != "sgd" or update["momentum"] > 0
    # PyTorch's optimizers keep states in the dtype of the parameters, and no master weights.
    is_native = not run.has_master_weights and run.optimizer_state == run.params
    is_native = is_native or (not keeps_states or run.optimizer == "adafactor") and run.params == "fp32"
    if not is_native or run.optimizer not in PYTORCHS_OWN:
        return OPTIMIZERS[run.optimizer](run, parameters, groups)
    return PYTORCHS_OWN[run.optimizer](groups, update)


def own_keys(run, name, tensor):
    """The learning rate and weight decay of a parameter: those of the first matching group, or else the defaults."""
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

# Functions of parameter groups and the run's optimizer keys.
PYTORCHS_OWN = {"adafactor": adafactor_of, "adam": adam_of(torch.optim.Adam), "adamw": adam_of(torch.optim.AdamW), "sgd": sgd_of}
