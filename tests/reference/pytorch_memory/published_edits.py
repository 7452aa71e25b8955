"""What `published.py` replaces in exported scripts, so that they have the layers of a published program."""

# What is replaced, by what, and a definition before the first class.

NORM = '''

class OwnNorm(nn.Module):
    def __init__(self, channels, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        normal = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight * normal + self.bias
'''
GELU = '''

def own_gelu(x):
    inner = torch.sqrt(torch.tensor(0.6366197723675814)) * (x + 0.044715 * torch.pow(x, 3))
    return 0.5 * x * (1 + torch.tanh(inner))
'''
# litgpt: the weight multiplies in fp32.
RMS_NORM = (
    "return self.weight * x.to(dtype)",
    "return (x * self.weight.float()).to(dtype)",
    "",
)
# litgpt: the loss of 128 tokens at a time, of logits without each sample's last token.
CHUNKS = (
    "return F.cross_entropy(logits.flatten(0, 1), targets.flatten())",
    """logits, targets = logits[:, :-1].reshape(-1, VOCABULARY), targets[:, 1:].reshape(-1)
        chunks = zip(logits.split(128), targets.split(128))
        losses = [F.cross_entropy(chunk, of_chunk, reduction="none") for chunk, of_chunk in chunks]
        return torch.cat(losses).sum() / max(1, targets.numel())""",
    "",
)
# litgpt: keys and values are repeated for each query head.
HEADS = (
    "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
    """        k, v = (part[:, :, None].expand(-1, -1, HEADS // KV_HEADS, -1, -1).flatten(1, 2) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
    "",
)
EDITS = {
    "heads": HEADS,
    "rms-norm": RMS_NORM,
    "chunks": CHUNKS,
    "norm": ("nn.LayerNorm(", "OwnNorm(", NORM),
    "gelu": ('F.gelu(self.up(self.norm(x)), approximate="tanh")', "own_gelu(self.up(self.norm(x)))", GELU),
}

# The classes of the transformers library. Models of 13B parameters do not fit into most host memories.
ON_CARD = (
    "        self.model = Network()",
    "        with torch.device(device):\n            self.model = Network()",
    "",
)
# litgpt: queries, keys and values are parts of one product, with one dropout for all their factors. The saved values hold it.
QKV = (
    "self.model = get_peft_model(",
    "self.model = merged(get_peft_model, ",
    '''

class MergedLora(nn.Module):
    def __init__(self, layers, enabled, adapters):
        super().__init__()
        self.sizes = [layer.out_features for layer in layers]
        inner, outer, first = layers[0].in_features, sum(self.sizes), layers[0]
        if type(first) is nn.Linear:
            self.linear = nn.Linear(inner, outer, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        else:
            settings = {name: getattr(first.weight, name) for name in ("compress_statistics", "quant_type")}
            with torch.device("meta"):
                self.linear = type(first)(inner, outer, bias=False, compute_dtype=torch.bfloat16, **settings)
            weight = torch.empty(outer, inner, dtype=torch.bfloat16)
            self.linear.weight = type(first.weight)(weight, requires_grad=False, **settings)
        self.enabled = [size for size, is_enabled in zip(self.sizes, enabled) if is_enabled]
        rows = torch.arange(outer).split(self.sizes)
        self.register_buffer("rows", torch.cat([of for of, is_enabled in zip(rows, enabled) if is_enabled]))
        self.a = nn.Parameter(torch.zeros(adapters.r * len(self.enabled), inner, dtype=torch.bfloat16))
        self.b = nn.Parameter(torch.zeros(sum(self.enabled), adapters.r, dtype=torch.bfloat16))
        self.dropout, self.scaling = nn.Dropout(adapters.lora_dropout), adapters.lora_alpha / adapters.r

    def forward(self, x):
        y = self.linear(x)
        inner = F.linear(self.dropout(x), self.a).chunk(len(self.enabled), -1)
        update = torch.cat([F.linear(part, b) for part, b in zip(inner, self.b.split(self.enabled))], -1)
        if len(self.enabled) < 3:
            update = torch.zeros_like(y).index_copy_(-1, self.rows, update)
        return y + update * self.scaling


class Part(nn.Module):
    def __init__(self, qkv, number):
        super().__init__()
        self.qkv, self.number = qkv, number

    def forward(self, x):
        if self.number == 0:
            self.qkv.parts = list(self.qkv(x).split(self.qkv.sizes, -1))
        return self.qkv.parts.pop(0)


def merged(get_peft_model, model, adapters, **_):
    names = ["q_proj", "k_proj", "v_proj"]
    enabled = [name in adapters.target_modules for name in names]
    adapters.target_modules = set(adapters.target_modules) - set(names)
    layers = model.model.layers
    model.requires_grad_(False)
    if adapters.target_modules:
        adapters.target_modules.add("lm_head")
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False)
    for layer in layers:
        attention = layer.self_attn
        qkv = MergedLora([getattr(attention, name) for name in names], enabled, adapters)
        for number, name in enumerate(names):
            setattr(attention, name, Part(qkv, number))
    return model
''',
)
# litgpt: the logits and the loss of 128 tokens at a time, of logits in fp32. Both are variables of the training loop.
LIBRARY_CHUNKS = (
    "return self.model(input_ids=tokens, labels=labels).loss",
    "return chunked_loss(self, tokens, labels)",
    '''

def chunked_loss(network, tokens, labels):
    model = network.model.get_base_model() if hasattr(network.model, "get_base_model") else network.model
    hidden = model.model(input_ids=tokens, use_cache=False)[0]
    logits = [model.lm_head(chunk) for chunk in hidden.split(128, 1)]
    logits = [chunk.float() for chunk in logits]
    logits[-1] = logits[-1][:, :-1]
    network.logits = logits
    chunks = zip(logits, labels[:, 1:].split(128, 1))
    losses = [F.cross_entropy(chunk.flatten(0, 1), of.flatten(), reduction="none") for chunk, of in chunks]
    network.loss = torch.cat(losses).sum() / max(1, labels[:, 1:].numel())
    return network.loss
''',
)
# The same as `heads`.
LIBRARY_HEADS = (
    "",
    "",
    """

from transformers.integrations import sdpa_attention

sdpa_attention.use_gqa_in_sdpa = lambda *_: False
""",
)
# bitsandbytes 0.42: a product in four bits keeps its input until its node is released.
PRODUCTS = (
    "import bitsandbytes as bnb\n",
    "import bitsandbytes as bnb\n",
    '''

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, state):
        ctx.kept, ctx.state = (x, weight), state
        return F.linear(x, bnb.functional.dequantize_4bit(weight, state).to(x.dtype))

    @staticmethod
    def backward(ctx, gradient):
        weight = bnb.functional.dequantize_4bit(ctx.kept[1], ctx.state)
        return torch.matmul(gradient, weight.to(gradient.dtype)), None, None


bnb.matmul_4bit = lambda x, weight, quant_state, bias: Product.apply(x, weight, quant_state)
''',
)
# litgpt at that time: the longest sample is in the first micro-batch, and the next ones are short.
FIRST_STEP = ("STEPS = 4", "STEPS = 1", "")
# torchtune: the loss of a copy of the logits, which are fp32 and have their classes in the second dimension.
CLASSES = (
    "return self.model(input_ids=tokens, labels=labels).loss",
    """logits = self.model(input_ids=tokens).logits.float()
        logits = logits[..., :-1, :].contiguous()
        logits = logits.transpose(1, 2)
        return F.cross_entropy(logits, labels[..., 1:].contiguous())""",
    "",
)
LIBRARY_EDITS = {
    "on-card": ON_CARD,
    "qkv": QKV,
    "chunks": LIBRARY_CHUNKS,
    "heads": LIBRARY_HEADS,
    "products": PRODUCTS,
    "first": FIRST_STEP,
    "classes": CLASSES,
}
