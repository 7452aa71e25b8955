"""The forward pass of a list of layers, from the parameters of a dump by their names."""

import torch
import torch.nn.functional as F

from dropout import drop
from transformer import ACTIVATIONS

# The loss of the output, against the targets.
LOSSES = {
    "cross_entropy": lambda output, targets: F.cross_entropy(output.flatten(0, -2).float(), targets.flatten()),
    "squared_error": lambda output, targets: F.mse_loss(output.float(), targets),
    "binary_cross_entropy": lambda output, targets: F.binary_cross_entropy_with_logits(output.float(), targets),
}


def forward(run, parameters, x, targets, seeds=None):
    """The loss of inputs x f32[B, ..] and targets, i64 classes or f32. `seeds` i32[B, 2]: of dropout."""
    sites = iter(range(1 << 24))
    for path, layer in modules(run.sequential["layers"]):
        x = apply(path, layer, parameters, x, seeds, sites)
    return LOSSES[run.sequential.get("loss", "cross_entropy")](x, targets)


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
    if key == "dropout":
        site = next(sites)
        return drop(x, value, site, seeds) if value > 0 else x
    if key in ACTIVATIONS:
        return ACTIVATIONS[key](x)
    inner = lambda x, layers, prefix: chain(path, layers, prefix, parameters, x, seeds, sites)
    if key == "block":
        return inner(x, value, "")
    assert key == "residual", key
    value = value if isinstance(value, dict) else {"layers": value}
    y = inner(x, value["layers"], "")
    return inner(x, value.get("projection", []), "projection.") + y


def chain(path, layers, prefix, parameters, x, seeds, sites):
    for name, layer in modules(layers, f"{path}.{prefix}"):
        x = apply(name, layer, parameters, x, seeds, sites)
    return x
