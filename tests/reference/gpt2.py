"""GPT-2 in PyTorch as a run describes it: its loss, its gradients, its optimizer.

`run` is what `run.toml` says; `parameters` are tensors by the names that they have in a dump.
"""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import states

LAYER_NORM_EPSILON = 1e-5


HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def accumulate_gradients(run, parameters, scaler, tokens, targets, model=None):
    """Adds up the scaled gradients of a step's micro-batches, in order. Their mean loss, over tokens i64[B, T].

    `model` takes the place of `forward`, which it may have compiled.
    """
    micro_batch = -(-run.batch_size // run.accumulate)
    half = HALVES.get(run.precision)
    losses = []
    for part in zip(tokens.split(micro_batch), targets.split(micro_batch)):
        # What is all in 16 bits has nothing to cast.
        casts = half is not None and run.residual == "fp32"
        with torch.autocast(tokens.device.type, dtype=half, enabled=casts):
            # The last may be smaller, and counts for as many samples as it has.
            loss = (model or forward)(run, parameters, *part) / (run.batch_size / len(part[0]))
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


def forward(run, parameters, tokens, targets):
    """GPT-2's decoder with the head tied to the token embedding; the mean loss over tokens i64[B, T]."""
    table = parameters["embedding.table"]
    x = F.embedding(tokens, table).float() + parameters["embedding.positions"].float()
    x = x.to(HALVES.get(run.residual, torch.float32))
    for layer in range(run.layers):
        if run.recompute:
            x = checkpoint(block, run, parameters, f"blocks.{layer}", x, use_reentrant=False)
        else:
            x = block(run, parameters, f"blocks.{layer}", x)
    logits = F.linear(norm(parameters, "head", x), table)
    # Softmax and loss in full precision, whatever the products are in.
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def block(run, parameters, name, x):
    x = x + attention(run, parameters, f"{name}.attention", x)
    return x + mlp(run, parameters, f"{name}.mlp", x)


def attention(run, parameters, name, x):
    qkv = linear(run, parameters, f"{name}.qkv", norm(parameters, name, x))
    # q, k and v lie side by side, each with its heads side by side: [B, H, T, C / H] each.
    heads = (part.unflatten(-1, (run.heads, -1)).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    seen = F.scaled_dot_product_attention(*heads, is_causal=True)
    return linear(run, parameters, f"{name}.out", seen.transpose(1, 2).flatten(2))


def mlp(run, parameters, name, x):
    hidden = F.gelu(linear(run, parameters, f"{name}.up", norm(parameters, name, x)), approximate="tanh")
    return linear(run, parameters, f"{name}.out", hidden)


def norm(parameters, name, x):
    weight, bias = parameters[f"{name}.norm.weight"], parameters[f"{name}.norm.bias"]
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias.to(x.dtype), LAYER_NORM_EPSILON)


def linear(run, parameters, name, x):
    y = F.linear(x, parameters[f"{name}.weight"], parameters[f"{name}.bias"])
    if f"{name}.lora_A" not in parameters:
        return y
    low = F.linear(x, parameters[f"{name}.lora_A"])
    return y + run.lora["alpha"] / run.lora["rank"] * F.linear(low, parameters[f"{name}.lora_B"])
