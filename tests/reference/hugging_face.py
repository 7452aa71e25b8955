"""A Hugging Face model in place of `transformer.py`, with parameters by their names in dumps.

`folder` holds `config.json` and weights for `from_pretrained`.
"""

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

# Module names by layer of a dump. Rows of several modules are concatenated.
GPT2 = {
    "embedding.table": ["transformer.wte.weight"],
    "embedding.positions": ["transformer.wpe.weight"],
    "head.norm": ["transformer.ln_f"],
    "block": "transformer.h",
    "attention.norm": ["ln_1"],
    "attention.qkv": ["attn.c_attn"],
    "attention.out": ["attn.c_proj"],
    "mlp.norm": ["ln_2"],
    "mlp.up": ["mlp.c_fc"],
    "mlp.out": ["mlp.c_proj"],
}
LLAMA = {
    "embedding.table": ["model.embed_tokens.weight"],
    "head.norm": ["model.norm"],
    "head.weight": ["lm_head.weight"],
    "block": "model.layers",
    "attention.norm": ["input_layernorm"],
    "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.q_norm": ["self_attn.q_norm"],
    "attention.k_norm": ["self_attn.k_norm"],
    "attention.out": ["self_attn.o_proj"],
    "mlp.norm": ["post_attention_layernorm"],
    "mlp.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.out": ["mlp.down_proj"],
    "mlp.router": ["mlp.gate"],
    "mlp.experts.gate_up": ["mlp.experts.gate_up_proj"],
    "mlp.experts.out": ["mlp.experts.down_proj"],
}
# A block with four norms has `post_attention_layernorm` after attention instead of before the MLP.
GEMMA2 = LLAMA | {
    "attention.out_norm": ["post_attention_layernorm"],
    "mlp.norm": ["pre_feedforward_layernorm"],
    "mlp.out_norm": ["post_feedforward_layernorm"],
}
PHI3 = LLAMA | {"attention.qkv": ["self_attn.qkv_proj"], "mlp.gate_up": ["mlp.gate_up_proj"]}
STARCODER2 = LLAMA | {"mlp.up": ["mlp.c_fc"], "mlp.out": ["mlp.c_proj"]}
GPT_NEO = GPT2 | {
    "attention.qkv": ["attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"],
    "attention.out": ["attn.attention.out_proj"],
}
OLMO2 = LLAMA | {
    "attention.out_norm": ["post_attention_layernorm"],
    "mlp.out_norm": ["post_feedforward_layernorm"],
}
GPT_NEOX = {
    "embedding.table": ["gpt_neox.embed_in.weight"],
    "head.norm": ["gpt_neox.final_layer_norm"],
    "head.weight": ["lm_head.weight"],
    "block": "gpt_neox.layers",
    "attention.norm": ["input_layernorm"],
    "attention.qkv": ["attention.query_key_value"],
    "attention.out": ["attention.dense"],
    "mlp.norm": ["post_attention_layernorm"],
    "mlp.up": ["mlp.dense_h_to_4h"],
    "mlp.out": ["mlp.dense_4h_to_h"],
}
PHI = LLAMA | {
    "head.norm": ["model.final_layernorm"],
    "head.bias": ["lm_head.bias"],
    "attention.out": ["self_attn.dense"],
    "mlp.up": ["mlp.fc1"],
    "mlp.out": ["mlp.fc2"],
}
FALCON = GPT_NEOX | {
    "embedding.table": ["transformer.word_embeddings.weight"],
    "head.norm": ["transformer.ln_f"],
    "block": "transformer.h",
    "attention.qkv": ["self_attention.query_key_value"],
    "attention.out": ["self_attention.dense"],
}
FALCON_NEW = FALCON | {"attention.norm": ["ln_attn"], "mlp.norm": ["ln_mlp"]}
NAMES = {
    "gpt_neox": GPT_NEOX, "phi": PHI, "falcon": FALCON, "olmo2": OLMO2, "olmo3": OLMO2, "gpt2": GPT2, "gemma2": GEMMA2,
    "gemma3_text": GEMMA2, "phi3": PHI3, "starcoder2": STARCODER2, "gpt_neo": GPT_NEO,
}


class HuggingFace:
    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        config = self.model.config
        self.names = NAMES.get(config.model_type, LLAMA)
        if getattr(config, "new_decoder_architecture", False):
            self.names = FALCON_NEW
        self.tensors = dict(self.model.named_parameters())
        # GPT-2's linear weights are [in, out].
        self.is_transposed = config.model_type == "gpt2"
        # The rows of the library's queries, keys and values, in order of those of a dump.
        self.order = None
        if config.model_type in ("gpt_neox", "falcon"):
            self.order = separated(config)

    def initial(self, dumped):
        """The initial parameters by their names in a dump, which may have fewer positions."""
        return {name: self.joined(name)[: len(tensor)].clone() for name, tensor in dumped.items()}

    def joined(self, name):
        tensors = [self.turned(name, self.tensors[theirs].detach()) for theirs in self.theirs(name)]
        return self.ordered(name, torch.cat(tensors))

    def ordered(self, name, tensor, back=False):
        """Rows of fused queries, keys and values in the order of a dump, or back in the library's."""
        if self.order is None or ".qkv." not in name:
            return tensor
        return tensor[self.order.argsort() if back else self.order]

    def theirs(self, name):
        if name in self.names:
            return self.names[name]
        layer, kind = name.rsplit(".", 1)
        prefix = ""
        if layer.startswith("blocks."):
            _, number, layer = layer.split(".", 2)
            prefix = f"{self.names['block']}.{number}."
        # The weights of all experts are one parameter [experts, out, in].
        suffix = "" if layer.startswith("mlp.experts.") else f".{kind}"
        return [f"{prefix}{module}{suffix}" for module in self.names[layer]]

    def turned(self, name, tensor):
        if tensor.dim() == 3:
            return tensor.flatten(0, 1)
        is_linear = name.startswith("blocks.") and name.endswith(".weight") and tensor.dim() == 2
        return tensor.T if self.is_transposed and is_linear else tensor

    def __call__(self, run, parameters, tokens, targets):
        """The mean loss over tokens i64[B, T]."""
        theirs = {}
        for name, tensor in parameters.items():
            names = self.theirs(name)
            rows = [len(self.turned(name, self.tensors[part])) for part in names]
            tensor = self.ordered(name, tensor, back=True)
            for part, own in zip(names, tensor.split(rows) if len(rows) > 1 else [tensor]):
                theirs[part] = self.turned(name, own).view(self.tensors[part].shape)
        logits = torch.func.functional_call(self.model, theirs, (tokens,)).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def separated(config):
    """The rows of queries, of keys and of values in a matrix with, for each key, its queries, the key and the value."""
    heads, head = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    groups = heads
    if config.model_type == "falcon":
        groups = 1 if config.multi_query and not config.new_decoder_architecture else config.num_kv_heads
    rows = torch.arange((heads + 2 * groups) * head).view(groups, -1, head)
    return torch.cat([part.flatten() for part in (rows[:, :-2], rows[:, -2], rows[:, -1])])
