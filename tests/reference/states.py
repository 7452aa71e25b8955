"""Optimizers that PyTorch lacks, or cannot run with master weights or with states in another dtype than the parameters.
Written from the definitions. Updates are computed in fp32."""

import torch

# Elements per block scale.
BLOCK = 256
DECADES = 7


class Full:
    """A state in fp32."""

    def __init__(self, like, _signed):
        self.stored = torch.zeros_like(like, dtype=torch.float32)

    def load(self):
        return self.stored

    def store(self, numbers):
        self.stored = numbers


class Half(Full):
    """A state in bf16, rounded to nearest."""

    def load(self):
        return self.stored.float()

    def store(self, numbers):
        self.stored = numbers.bfloat16()


class Quantized:
    """Block-wise dynamic quantization (Dettmers et al. 2022): codes, and a scale per block, its largest magnitude."""

    def __init__(self, like, signed):
        self.shares, self.shape, self.count = dynamic_map(signed), like.shape, like.numel()
        self.middles = ((self.shares[1:] + self.shares[:-1]) / 2).float()
        self.shares = self.shares.float()
        self.store(torch.zeros_like(like, dtype=torch.float32))

    def load(self):
        return (self.shares[self.codes] * self.scales).flatten()[: self.count].view(self.shape)

    def store(self, numbers):
        missing = -self.count % BLOCK
        blocks = torch.nn.functional.pad(numbers.flatten(), (0, missing)).view(-1, BLOCK)
        self.scales = blocks.abs().amax(dim=1, keepdim=True)
        shares = torch.where(self.scales > 0, blocks / self.scales, 0)
        self.codes = torch.bucketize(shares, self.middles)


def dynamic_map(signed):
    """The values of the 256 codes, f64[256], sorted: 0, 1 and seven decades. Each decade has twice as many values as
    the one below, at the middles of equal intervals. A signed map has half as many values of either sign."""
    shares = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for decade in range(DECADES):
        edges = torch.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1, dtype=torch.float64)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (decade - DECADES + 1)
        shares += [middles, -middles] if signed else [middles]
    return torch.cat(shares).sort().values


def kind_of_state(run, name, parameter):
    if run.optimizer_state == "fp32":
        return Full
    if run.optimizer_state == "bf16":
        return Half
    looked_up = name.startswith("embedding.") and not run.quantize["embeddings"]
    return Full if looked_up or parameter.numel() < run.quantize["from"] else Quantized


class Stored(torch.optim.Optimizer):
    """The common part: `groups` in the form of PyTorch's optimizers, states by parameter."""

    def __init__(self, run, parameters, groups, signs):
        super().__init__(groups, {"lr": run.update["lr"]})
        self.update, self.steps = run.update, 0
        self.names = {parameter: name for name, parameter in parameters.items()}
        kinds = {parameter: kind_of_state(run, name, parameter) for name, parameter in parameters.items()}
        self.states = {
            parameter: [kind(parameter.detach(), signed) for signed in signs] for parameter, kind in kinds.items()
        }
        # Master weights: updated, then rounded to the parameters.
        self.copies = {parameter: parameter.detach().float().clone() for parameter in kinds} if run.has_master_weights else {}

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                name = self.names[parameter]
                states = self.states[parameter]
                full = self.copies.get(parameter, parameter.detach().float())
                loaded = [state.load() for state in states]
                numbers = self.updated(name, full, parameter.grad.float(), group["lr"], group["weight_decay"], loaded)
                parameter.copy_(full)
                for state, after in zip(states, numbers):
                    state.store(after)


class Adam(Stored):
    """Adam. Second moments use the unsigned map."""

    decoupled = False

    def __init__(self, run, parameters, groups):
        super().__init__(run, parameters, groups, (True, False))

    def updated(self, _name, parameter, gradient, lr, weight_decay, moments):
        if self.decoupled:
            parameter.mul_(1 - lr * weight_decay)
        else:
            gradient = gradient + weight_decay * parameter
        betas = (self.update["beta1"], self.update["beta2"])
        first, second = (
            beta * moment + (1 - beta) * added
            for beta, moment, added in zip(betas, moments, (gradient, gradient * gradient))
        )
        corrections = [1 - beta**self.steps for beta in betas]
        denominator = second.sqrt() / corrections[1] ** 0.5 + self.update["epsilon"]
        parameter.sub_(lr / corrections[0] * (first / denominator))
        return first, second


class AdamW(Adam):
    decoupled = True


class Lion(Stored):
    """EvoLved Sign Momentum (Chen et al. 2023)."""

    def __init__(self, run, parameters, groups):
        super().__init__(run, parameters, groups, (True,))

    def updated(self, _name, parameter, gradient, lr, weight_decay, momenta):
        [momentum] = momenta
        beta1, beta2 = self.update["beta1"], self.update["beta2"]
        direction = beta1 * momentum + (1 - beta1) * gradient
        parameter.mul_(1 - lr * weight_decay).sub_(lr * direction.sign())
        return (beta2 * momentum + (1 - beta2) * gradient,)


class SGD(Stored):
    def __init__(self, run, parameters, groups):
        self.momentum = run.update["momentum"]
        super().__init__(run, parameters, groups, (True,) if self.momentum > 0 else ())

    def updated(self, _name, parameter, gradient, lr, weight_decay, velocities):
        momentum = self.momentum
        gradient = gradient + weight_decay * parameter
        if not velocities:
            parameter.sub_(lr * gradient)
            return ()
        velocity = momentum * velocities[0] + gradient
        parameter.sub_(lr * (gradient + momentum * velocity if self.update["nesterov"] else velocity))
        return (velocity,)


OPTIMIZERS = {"adam": Adam, "adamw": AdamW, "lion": Lion, "sgd": SGD}
