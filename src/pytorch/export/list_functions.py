

def own_name(name):
    """The name of a parameter in a dump: modules are in dictionaries, whose keys have no dots."""
    return ("." + name).replace(".layers.", ".").replace("/", ".")[1:]


def freeze(model, *layers):
    for name, parameter in model.named_parameters():
        if any(own_name(name).startswith(layer + ".") for layer in layers):
            parameter.requires_grad_(False)


def read_batches(dump):
    """Inputs and targets of every step, [steps, batch, ..]."""
    if dump is None:
        return [torch.randn(STEPS + 2, BATCH, *INPUT), torch.randint(0, CLASSES, (STEPS + 2, BATCH, *TARGETS))]
    from safetensors.torch import load_file

    batches = load_file(os.path.join(dump, "batches.safetensors"))
    return [batches["input"], batches["targets"].long()]


def load_parameters(model, dump):
    if dump is None:
        return
    from safetensors.torch import load_file

    stored = load_file(os.path.join(dump, "initial.safetensors"))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(stored[own_name(name)])
