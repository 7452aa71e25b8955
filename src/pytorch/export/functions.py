

def apply(optimizer):
    def hook(parameter):
        optimizer.step()
        optimizer.zero_grad()

    return hook


def freeze(model, *layers):
    for name, parameter in model.named_parameters():
        if any(name.startswith(layer + ".") for layer in layers):
            parameter.requires_grad_(False)


def read_batches(dump):
    """Tokens and targets of every step, [steps, batch, context]."""
    if dump is None:
        return [torch.randint(0, VOCABULARY, (STEPS + 2, BATCH, CONTEXT)) for _ in range(2)]
    from safetensors.torch import load_file

    batches = load_file(os.path.join(dump, "batches.safetensors"))
    return [batches[name].long() for name in ("tokens", "targets")]


def micro_batches(batches, step):
    tokens, targets = (part[step % len(part)] for part in batches)
    return zip(tokens.split(MICRO_BATCH), targets.split(MICRO_BATCH))


def load_parameters(model, dump):
    if dump is None:
        return
    from safetensors.torch import load_file

    stored = load_file(os.path.join(dump, "initial.safetensors"))
    renamed = {"embedding.weight": "embedding.table", "positions.weight": "embedding.positions", "norm.": "head.norm."}
    rows = {"q": ("qkv", 0), "k": ("qkv", HEADS * HEAD), "v": ("qkv", (HEADS + KV_HEADS) * HEAD), "gate": ("gate_up", 0), "up": ("gate_up", WIDTH)}
    for name, parameter in model.named_parameters():
        for here, there in renamed.items():
            if name.startswith(here):
                name = there + name[len(here):]
        first = 0
        if name not in stored:
            parent, layer, kind = name.rsplit(".", 2)
            layer, first = rows[layer]
            name = f"{parent}.{layer}.{kind}"
        parameter.data.copy_(stored[name][first : first + len(parameter)])


def write_requests(file):
    """One line per call of the allocator: `+bytes`, or `-number` of the request that is released."""
    numbers, count = {}, 0
    with open(file, "w") as out:
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            if event["action"] == "alloc":
                numbers[event["addr"]] = count
                count += 1
                out.write(f"+{event['size']}\n")
            elif event["action"] == "free_requested":
                out.write(f"-{numbers.pop(event['addr'])}\n")


