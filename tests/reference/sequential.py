"""The forward pass of a list of layers, from the parameters of a dump by their names."""

import torch
import torch.nn.functional as F

from dropout import drop
from transformer import ACTIVATIONS

# The loss of the output f32, against the targets.
LOSSES = {
    "squared_error": F.mse_loss,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    "sum": lambda output, targets: output.sum(),
}


def loss(written, output, targets):
    """`written`: the loss of a configuration, a word or a table."""
    keys = {} if isinstance(written, str) else written["cross_entropy"]
    if written == "cross_entropy" or keys:
        return F.cross_entropy(output.flatten(0, -2), targets.flatten(), **keys)
    return LOSSES[written](output, targets)


def is_sum(run):
    """Whether the loss is a sum over the samples, without targets."""
    return run.sequential is not None and run.sequential.get("loss") == "sum"


def forward(run, parameters, x, targets, seeds=None):
    """The loss of inputs x f32[B, ..] and targets, i64 classes, f32 or None. `seeds` i32[B, 2]: of dropout."""
    sites = iter(range(1 << 24))
    for path, layer in modules(run.sequential["layers"]):
        x = apply(path, layer, parameters, x, seeds, sites)
    return loss(run.sequential.get("loss", "cross_entropy"), x.float(), targets)


def modules(layers, prefix=""):
    """Each layer with its name, as `nn.Sequential` names them; repeated layers one by one."""
    position = 0
    pending = list(layers)
    while pending:
        layer = pending.pop(0)
        key, value = layer if isinstance(layer, tuple) else kind(layer)
        if key == "repeat":
            pending = value["layers"] * value["times"] + pending
            continue
        if key == "group":
            yield from modules(value["layers"], f"{prefix}{value['name']}.")
        else:
            yield f"{prefix}{position}", (key, value)
        position += 1


def kind(layer):
    if isinstance(layer, str):
        return layer, {}
    [(key, value)] = layer.items()
    return key, value


def apply(path, layer, parameters, x, seeds, sites):
    key, value = layer
    weight, bias = (parameters.get(f"{path}.{name}") for name in ("weight", "bias"))
    if key == "linear":
        return F.linear(x, weight, bias)
    if key == "layer_norm":
        return F.layer_norm(x, x.shape[-1:], weight, bias, value.get("epsilon", 1e-5))
    if key == "rms_norm":
        return F.rms_norm(x, x.shape[-1:], weight, value.get("epsilon", 1e-5))
    if key == "conv2d":
        places = {name: value.get(name, usual) for name, usual in (("stride", 1), ("padding", 0), ("groups", 1))}
        return F.conv2d(x, weight, bias, **places)
    if key in ("max_pool", "avg_pool"):
        pool = F.max_pool2d if key == "max_pool" else F.avg_pool2d
        return pool(x, value["kernel"], value.get("stride"), value.get("padding", 0))
    if key == "global_pool":
        return x.mean((-2, -1), keepdim=True)
    if key == "batch_norm":
        running = [parameters[f"{path}.{name}"] for name in ("running_mean", "running_var")]
        return F.batch_norm(x, *running, weight, bias, True, value.get("momentum", 0.1), value.get("epsilon", 1e-5))
    if key == "group_norm":
        return F.group_norm(x, value["groups"], weight, bias, value.get("epsilon", 1e-5))
    if key == "softmax":
        return F.softmax(x, -1)
    if key == "flatten":
        return x.flatten(1)
    if key == "embedding":
        return F.embedding(x, weight)
    if key == "positions":
        return x + weight
    if key == "to_sequence":
        return x.flatten(2).transpose(1, 2)
    if key == "mean_pool":
        return x.mean(1)
    if key == "attention":
        return attention(path, value, parameters, x, seeds, sites)
    if key == "dropout":
        site = next(sites)
        return drop(x, value, site, seeds) if value > 0 else x
    if key in ACTIVATIONS:
        return ACTIVATIONS[key](x)
    inner = lambda x, layers, prefix: chain(path, layers, prefix, parameters, x, seeds, sites)
    if key == "block":
        return inner(x, value, "")
    if key == "transformer_block":
        for added, after in branches(value, x.shape[-1]):
            x = x + named(path, added, parameters, x, seeds, sites)
            x = named(path, after, parameters, x, seeds, sites)
        return x
    assert key == "residual", key
    value = value if isinstance(value, dict) else {"layers": value}
    y = inner(x, value["layers"], "")
    return inner(x, value.get("projection", []), "projection.") + y


def attention(path, value, parameters, x, seeds, sites):
    """With the parameters of `nn.MultiheadAttention`."""
    weight, bias = (parameters.get(f"{path}.in_proj_{name}") for name in ("weight", "bias"))
    heads = lambda part: part.unflatten(-1, (value["heads"], -1)).transpose(1, 2)
    q, k, v = (heads(part) for part in F.linear(x, weight, bias).chunk(3, -1))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if value.get("causal", False):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    site = next(sites)
    if value.get("dropout", 0) > 0:
        scores = drop(scores.softmax(-1), value["dropout"], site, seeds)
    else:
        scores = scores.softmax(-1)
    weight, bias = (parameters.get(f"{path}.out_proj.{name}") for name in ("weight", "bias"))
    return F.linear((scores @ v).transpose(1, 2).flatten(-2), weight, bias)


def branches(block, channels):
    """The layers of `nn.TransformerEncoderLayer`: for each part those that are added, and those after the addition."""
    dropout = block.get("dropout", 0)
    dropped = lambda name: [(name, ("dropout", dropout))] if dropout > 0 else []
    linear = lambda name, out: (name, ("linear", out))
    attend = {"heads": block["heads"], "causal": block.get("causal", False), "dropout": dropout}
    feed_forward = [linear("linear1", block["hidden"]), ("activation", (block.get("activation", "relu"), {}))]
    feed_forward += dropped("dropout") + [linear("linear2", channels)] + dropped("dropout2")
    parts = {"norm1": [("self_attn", ("attention", attend))] + dropped("dropout1"), "norm2": feed_forward}
    for name, layers in parts.items():
        norm = [(name, ("layer_norm", {}))]
        yield (norm + layers, []) if block.get("norm", "post") == "pre" else (layers, norm)


def named(path, layers, parameters, x, seeds, sites):
    for name, layer in layers:
        x = apply(f"{path}.{name}", layer, parameters, x, seeds, sites)
    return x


def chain(path, layers, prefix, parameters, x, seeds, sites):
    for name, layer in modules(layers, f"{path}.{prefix}"):
        x = apply(name, layer, parameters, x, seeds, sites)
    return x
