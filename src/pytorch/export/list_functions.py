

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
        parameter.data.copy_(stored[name])
