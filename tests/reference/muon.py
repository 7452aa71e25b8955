"""Muon (Jordan et al. 2024) for the matrices of blocks, AdamW for all other parameters. PyTorch's Muon does not split
parameters, and multiplies in bf16 at any precision. This one splits fused parameters (q, k, v; gate, up) into their
matrices and multiplies in the run's precision."""

import copy

import torch

import states
from transformer import HALVES

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def is_matrix(name, tensor):
    """Whether a parameter is a matrix of a block: embedding, head, biases and norms are not."""
    return name.startswith("blocks.") and tensor.dim() == 2


class Muon(torch.optim.Optimizer):
    """Two optimizers, one for matrices and one for the rest. Their parameter groups are this optimizer's."""

    def __init__(self, run, parameters, groups):
        super().__init__(groups, {"lr": run.update["lr"]})
        names = {parameter: name for name, parameter in parameters.items()}
        rest = copy.copy(run)
        rest.update = run.update["adamw"]
        self.parts = []
        for made, of_matrices, run in [(OfMatrices, True, run), (states.AdamW, False, rest)]:
            own = {name: tensor for name, tensor in parameters.items() if is_matrix(name, tensor) == of_matrices}
            # A group has parameters of one kind only, since the keys of the two kinds differ.
            groups = [g for g in self.param_groups if is_matrix(names[g["params"][0]], g["params"][0]) == of_matrices]
            if groups:
                part = made(run, own, groups)
                part.param_groups = groups
                self.parts.append(part)

    @torch.no_grad()
    def step(self):
        for part in self.parts:
            part.step()


class OfMatrices(states.Stored):
    def __init__(self, run, parameters, groups):
        super().__init__(run, parameters, groups, (True,))
        self.run, self.dtype = run, HALVES.get(run.precision, torch.float32)

    def updated(self, name, parameter, gradient, lr, weight_decay, momenta):
        update, [momentum] = self.update, momenta
        momentum = momentum + (1 - update["momentum"]) * (gradient - momentum)
        direction = torch.lerp(gradient, momentum, update["momentum"]) if update["nesterov"] else momentum
        parameter.mul_(1 - lr * weight_decay)
        rows = stacked(self.run, name, parameter)
        for own, part in zip(parameter.split(rows), direction.split(rows)):
            x = (part / part.norm().clamp(min=update["epsilon"])).to(self.dtype)
            own.sub_(lr * self.adjusted(*part.shape) * orthogonal(x, update["ns_steps"]).float())
        return (momentum,)

    def adjusted(self, rows, columns):
        if self.update["adjust"] == "original":
            return max(1, rows / columns) ** 0.5
        return 0.2 * max(rows, columns) ** 0.5


def orthogonal(x, steps):
    """Newton-Schulz iterations on a matrix, transposed if it has more rows than columns."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T, steps).T
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def stacked(run, name, tensor):
    """The number of rows of each matrix within a parameter."""
    rows = tensor.shape[0]
    if name.endswith((".attention.qkv.weight", ".attention.qkv.lora_B")):
        head = rows // (run.heads + 2 * run.kv_heads)
        return [run.heads * head, run.kv_heads * head, run.kv_heads * head]
    return [rows // 2] * 2 if name.endswith((".mlp.gate_up.weight", ".mlp.gate_up.lora_B")) else [rows]
