"""The transformer of a run in PyTorch, from tokens to loss.

`run` is the configuration in `run.toml`; `parameters` are tensors by their names in a dump.
"""

import functools
import json
import math

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from dropout import drop

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}

# By their names in experiments. A gate's rows are the first rows of the `gate_up` matrix.
ACTIVATIONS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu_squared": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky_relu": F.leaky_relu,
}
GATES = {
    "geglu_tanh": "gelu_tanh",
    "geglu": "gelu",
    "reglu": "relu",
    "reglu_squared": "relu_squared",
    "swiglu": "silu",
    "gtu": "tanh",
    "glu": "sigmoid",
    "leaky_reglu": "leaky_relu",
}

# Norms by their names in experiments.
NORMS = {
    "layer": lambda x, weight, bias, epsilon: F.layer_norm(
        x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), epsilon
    ),
    "rms": lambda x, weight, bias, epsilon: F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), epsilon),
    "rms_zero_centered": lambda x, weight, bias, epsilon: F.rms_norm(
        x, x.shape[-1:], (1 + weight.float()).to(x.dtype), epsilon
    ),
}


def forward(run, parameters, tokens, targets, seeds=None):
    """The mean loss over tokens i64[B, T]. `seeds` i32[B, 2] are the dropout seeds, if any."""
    table = parameters["embedding.table"]
    x = F.embedding(tokens, table).float()
    if run.embedding_scale:
        x = run.embedding_scale * x
    if "embedding.positions" in parameters:
        x = x + parameters["embedding.positions"].float()
    x = x.to(HALVES.get(run.residual, torch.float32))
    if seeds is not None and run.dropout["embedding"]:
        x = drop(x, run.dropout["embedding"], 0, seeds)
    for layer in range(run.layers):
        if run.recompute:
            x = checkpoint(block, run, parameters, layer, x, seeds, use_reentrant=False)
        else:
            x = block(run, parameters, layer, x, seeds)
    # Post-norm blocks end with a norm. The head may be tied to the token embedding.
    if run.norm_placement != "post":
        x = norm(run, parameters, "head.norm", x)
    if run.logit_scale:
        x = run.logit_scale * x
    logits = F.linear(x, parameters.get("head.weight", table), parameters.get("head.bias"))
    # Softmax and loss in fp32, whatever the precision of matmuls.
    logits = logits.float()
    if run.logit_softcap:
        logits = run.logit_softcap * torch.tanh(logits / run.logit_softcap)
    # Padding has targets of -1.
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def block(run, parameters, layer, x, seeds=None):
    name, window = f"blocks.{layer}.attention", window_of(run, layer)
    # Dropout sites of a block: its attention weights, and the residual branches of attention and MLP.
    weights, *sites = (chance(run, place, 1 + 3 * layer + site, seeds) for site, place in enumerate(PLACES))
    attending = lambda x: attention(run, parameters, layer, window, weights, x)
    # The feed-forward layer reads what attention added to, or the block's input, through its own norm or attention's.
    y = beside(run, parameters, name, [x, x], sites[0], attending)
    source = y if run.sub_layers == "sequential" else x
    norms = name if run.sub_layers == "parallel_shared_norm" else f"blocks.{layer}.mlp"
    name = f"blocks.{layer}.mlp"
    return beside(run, parameters, norms, [source, y], sites[1], lambda x: mlp(run, parameters, name, x))


PLACES = "attention", "residual", "residual"


def chance(run, place, site, seeds):
    """The dropout function of a site; None without dropout."""
    rate = run.dropout[place]
    return (lambda x: drop(x, rate, site, seeds)) if seeds is not None and rate else None


def beside(run, parameters, name, streams, dropped, part):
    """One residual branch of a block, with its norms, from the first stream, added to the second."""
    source, x = streams
    dropout = dropped or (lambda y: y)
    dropped = lambda y: dropout(y if run.residual_scale is None else run.residual_scale * y)
    if run.norm_placement == "post":
        return norm(run, parameters, f"{name}.norm", x + dropped(part(source)))
    y = part(source if run.norm_placement == "output" else norm(run, parameters, f"{name}.norm", source))
    if run.norm_placement in ("sandwich", "output"):
        # In the residual stream's dtype.
        y = norm(run, parameters, f"{name}.out_norm", y.to(x.dtype))
    return x + dropped(y)


def window_of(run, layer):
    """The window of a layer: the number of positions that a query attends to, its own included; None without."""
    first = run.global_first or run.global_every
    return None if run.global_every and (layer + 1 - first) % run.global_every == 0 else run.window


def attention(run, parameters, layer, window, dropped, x):
    name = f"blocks.{layer}.attention"
    qkv = linear(run, parameters, f"{name}.qkv", x)
    # q, k and v lie side by side, each with its heads side by side: [B, H, T, D] each.
    heads = qkv.unflatten(-1, (run.heads + 2 * run.kv_heads, -1)).transpose(1, 2)
    q, k, v = heads.split([run.heads, run.kv_heads, run.kv_heads], dim=1)
    if run.qk_norm and run.qk_norm_over == "all_heads":
        q, k = (norm_all_heads(run, parameters, f"{name}.{part}", x) for part, x in (("q_norm", q), ("k_norm", k)))
    elif run.qk_norm:
        q, k = (norm_heads(run, parameters, f"{name}.{part}", x) for part, x in (("q_norm", q), ("k_norm", k)))
    if rotary := rotary_of(run, layer, window):
        channels = rotary.get("channels", "off")
        channels = q.shape[-1] if channels == "off" else channels
        turns = turns_of(json.dumps(rotary), q.shape[-2], channels, q.device)
        q, k = (torch.cat([rotate(x[..., :channels], *turns), x[..., channels:]], dim=-1) for x in (q, k))
    seen = attend(run, window, dropped, q, k, v)
    return linear(run, parameters, f"{name}.out", seen.transpose(1, 2).flatten(2))


def rotary_of(run, layer, window):
    """The rotary keys of a layer; None if it does not rotate."""
    # Older runs have no such keys.
    every, base = (run.rotary.get(key, "off") for key in ("skip_every", "window_base"))
    if run.positions != "rotary" or every != "off" and (layer + 1) % every == 0:
        return None
    if window is None or base == "off":
        return run.rotary
    return run.rotary | {"base": base, "scaling": "off", "divisors": []}


def attend(run, window, dropped, q, k, v):
    """Attention of queries [B, H, T, D] over keys and values [B, G, T, D]: [B, H, T, D]."""
    shared = run.kv_heads != run.heads
    scale = run.attention_scale if window is None else run.window_attention_scale or run.attention_scale
    if window is None and run.attention_softcap is None and dropped is None:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=run.causal, scale=scale, enable_gqa=shared
        )
    if shared:
        k, v = (part.repeat_interleave(run.heads // run.kv_heads, dim=1) for part in (k, v))
    scores = (q @ k.transpose(-2, -1)).float() * (scale or q.shape[-1] ** -0.5)
    if run.attention_softcap:
        scores = run.attention_softcap * torch.tanh(scores / run.attention_softcap)
    weights = scores.masked_fill(~mask(run, window, q.shape[-2], q.device), -math.inf).softmax(-1)
    if dropped is not None:
        weights = dropped(weights)
    return weights.to(v.dtype) @ v


def mask(run, window, positions, device):
    """The attention mask, bool[T, T]: True where the query of the row attends to the key of the column."""
    position = torch.arange(positions, device=device)
    distance = position[:, None] - position
    seen = torch.ones_like(distance, dtype=torch.bool)
    if run.causal:
        seen &= distance >= 0
    if window:
        seen &= distance < window
    return seen


@functools.cache
def turns_of(rotary, positions, head, device):
    """Cosines and sines by position and pair of channels, f32[T, D / 2], computed once for all blocks and steps."""
    rotary = json.loads(rotary)
    frequencies = rotary["base"] ** (torch.arange(0, head, 2, dtype=torch.float64, device=device) / -head)
    if rotary["scaling"] != "off":
        frequencies = slowed_down(frequencies, **rotary["scaling"])
    # Older runs without the key have no divisors.
    if rotary.get("divisors"):
        frequencies = frequencies / torch.tensor(rotary["divisors"], dtype=torch.float64, device=device)
    angles = torch.arange(positions, dtype=torch.float32, device=device).outer(frequencies.float())
    return angles.cos(), angles.sin()


def slowed_down(frequencies, factor, low, high, original):
    """Llama 3's rotary scaling: keeps high frequencies, divides low ones by the factor, interpolates between."""
    lengths = 2 * math.pi / frequencies
    share = (original / lengths - low) / (high - low)
    between = (1 - share) * frequencies / factor + share * frequencies
    slow, fast = lengths > original / low, lengths < original / high
    return torch.where(slow, frequencies / factor, torch.where(fast, frequencies, between))


def rotate(x, cosines, sines):
    """Rotates each pair of channels i and i + D / 2 by its angle."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], dim=-1).to(x.dtype)


def mlp(run, parameters, name, x):
    if run.experts:
        return mixture(run, parameters, name, x.flatten(0, -2)).view_as(x)
    if run.activation in GATES:
        gate, up = linear(run, parameters, f"{name}.gate_up", x).chunk(2, dim=-1)
        hidden = ACTIVATIONS[GATES[run.activation]](gate) * up
    else:
        hidden = ACTIVATIONS[run.activation](linear(run, parameters, f"{name}.up", x))
    return linear(run, parameters, f"{name}.out", hidden)


def mixture(run, parameters, name, x):
    """Experts: each row of x [N, C] goes through those with the largest probabilities."""
    count, per_token = run.experts["count"], run.experts["per_token"]
    weights = F.linear(x, parameters[f"{name}.router.weight"]).float().softmax(-1)
    weights, chosen = weights.topk(per_token)
    if run.experts["normalize"]:
        weights = weights / weights.sum(-1, keepdim=True)
    first, last = (parameters[f"{name}.experts.{part}.weight"].chunk(count) for part in ("gate_up", "out"))
    y = torch.zeros_like(x)
    for expert in range(count):
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        gate, up = F.linear(x[rows], first[expert]).chunk(2, dim=-1)
        of_expert = F.linear(ACTIVATIONS[GATES[run.activation]](gate) * up, last[expert])
        y = y.index_add(0, rows, (of_expert * weights[rows, place, None]).to(y.dtype))
    return y


def norm(run, parameters, name, x):
    # A norm without a weight or bias has no such parameter.
    weight, bias = (parameters.get(f"{name}.{part}") for part in ("weight", "bias"))
    return NORMS[run.norm](x, weight, bias, run.norm_epsilon)


def norm_heads(run, parameters, name, x):
    weight = parameters[f"{name}.weight"].float()
    if run.norm == "rms_zero_centered":
        weight = 1 + weight
    return F.rms_norm(x.float(), weight.shape, weight, run.norm_epsilon).to(x.dtype)


def norm_all_heads(run, parameters, name, x):
    """Heads [B, H, T, D] normalized together."""
    row = norm_heads(run, parameters, name, x.transpose(1, 2).flatten(2))
    return row.unflatten(2, x.shape[1::2]).transpose(1, 2)


def linear(run, parameters, name, x):
    # A layer without a bias has no such parameter.
    y = F.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
    if f"{name}.lora_A" not in parameters:
        return y
    low = F.linear(x, parameters[f"{name}.lora_A"])
    return y + run.lora["alpha"] / run.lora["rank"] * F.linear(low, parameters[f"{name}.lora_B"])
