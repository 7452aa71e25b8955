"""Draws programs: an experiment file whose strategies have random models, sizes and memory strategies.

    python3 draw.py SEED COUNT > drawn.toml
    python3 draw.py --transformers SEED COUNT > transformers-drawn.toml
    python3 draw.py --trainer SEED COUNT > trainer-drawn.toml
    python3 draw.py --bitsandbytes SEED COUNT > bitsandbytes-drawn.toml
    python3 draw.py --families SEED COUNT > families-drawn.toml
    python3 draw.py --kernels SEED COUNT > kernels-drawn.toml
    python3 draw.py --offload SEED COUNT > offload-drawn.toml
    python3 draw.py --documents SEED COUNT > documents-drawn.toml
    python3 draw.py --documents-trainer SEED COUNT > documents-trainer-drawn.toml

Equal arguments give equal programs.
"""

import json
import random
import sys

BASE = """\
# Programs for the recorded allocator requests, drawn by `python3 draw.py {arguments}`.
name = "{name}"

[model.transformer]
layers = 1
d_model = 32
heads = 1
context = 16

[data.synthetic]

[train]
batch_size = 1
clip_norm = "off"
optimizer.adamw = {{ lr = 1e-3 }}
"""

LIBRARY = """
[plan]
torch_program = "{program}"
"""

OPTIMIZERS = ["adamw = { lr = 1e-3 }"] * 4 + [
    "adam = { lr = 1e-3 }",
    "sgd = { lr = 0.1 }",
    "sgd = { lr = 0.1, momentum = 0.9 }",
]


class Draw:
    """One program."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, share):
        return self.random.random() < share

    def one(self, *values):
        return self.random.choice(values)

    def model(self):
        """Keys of `[model.transformer]`. Attention's kernels support heads of 8, 16, .. 256 channels."""
        heads = self.one(1, 2, 3, 4, 5, 8)
        width = heads * self.one(16, 32, 40, 64, 80, 96, 128)
        model = {
            "layers": self.random.randint(1, 4),
            "d_model": width,
            "heads": heads,
            "context": self.one(17, 64, 100, 128, 200, 333, 512, 1000, 1024),
            "vocabulary": self.one(257, 300, 1000, 5000, 32000, 50257),
        }
        if self.chance(0.5):
            model["positions"] = "rotary"
            if self.chance(0.2):
                model["qk_norm"] = True
        if self.chance(0.4):
            model["kv_heads"] = self.one(*(count for count in range(1, heads + 1) if heads % count == 0))
        if self.chance(0.4):
            model["norm"] = self.one("rms", "rms_zero_centered")
        if self.chance(0.3):
            model["norm_placement"] = self.one("post", "sandwich")
        if self.chance(0.6):
            model["activation"] = self.one("gelu", "relu", "relu_squared", "silu", "swiglu", "geglu", "swiglu")
        if self.chance(0.3):
            model["d_ff"] = self.one(2 * width, 3 * width, 8 * (width // 3) + 8)
        if self.chance(0.3):
            model["bias"] = self.one(True, False)
        if self.chance(0.3):
            model["tied"] = False
        if self.chance(0.2):
            model["dropout"] = 0.1
        if self.chance(0.1):
            model["logit_softcap"] = 30.0
        if self.chance(0.1):
            model["embedding_scale"] = 2.0
        if self.chance(0.1):
            model["causal"] = False
        return model

    def dtypes(self):
        return self.random.choices(
            [
                {},
                {"precision": "bf16"},
                {"precision": "fp16"},
                {"params": "bf16", "master_weights": False, "optimizer_state": "bf16"},
                {"params": "bf16", "residual": "bf16"},
                {"params": "bf16", "residual": "bf16", "gradient_dtype": "fp32"},
                {"params": "fp16", "residual": "fp16", "loss_scale": "dynamic"},
            ],
            [25, 25, 10, 10, 10, 10, 10],
        )[0]

    def recompute(self, layers):
        every, segments = {"recompute": {"every": 2}}, {"recompute": {"segments": 2}}
        return self.random.choices(
            [
                {},
                {"recompute": "block"},
                every,
                {"recompute": self.one(["attention"], ["mlp"], ["attention", "mlp"])},
                segments if layers > 1 else {},
            ],
            [40, 20, 10, 20, 10],
        )[0]

    def attention(self):
        return {"attention": "materialized"} if self.chance(0.2) else {}

    def loss(self):
        return {"loss_chunks": self.one(2, 3, 8)} if self.chance(0.2) else {}

    def freeze(self, model):
        layers = ["embedding", "blocks.0", "blocks.0.mlp"] + ["head"] * (not model.get("tied", True))
        return {"freeze": [self.one(*layers)]}

    def training(self, settings, strategy, model, batch):
        """Adds what only training has."""
        strategy |= self.recompute(model["layers"])
        clips = self.chance(0.4)
        if batch > 1 and self.chance(0.3):
            strategy["accumulate"] = self.one(*(count for count in (2, 3, 4) if count <= batch))
        elif "fp16" not in (strategy.get("precision"), strategy.get("params")) and self.chance(0.15):
            strategy["update"] = "in_backward"
            clips = False
        if "update" not in strategy and self.chance(0.2):
            strategy["gradients"] = "zero"
        if self.chance(0.15):
            # A tied head is the embedding.
            strategy |= self.freeze(model)
        optimizer = self.one(*OPTIMIZERS)
        if optimizer.startswith("sgd"):
            strategy.pop("optimizer_state", None)
        settings["train.optimizer"] = f"{{ {optimizer} }}"
        if clips:
            settings["train.clip_norm"] = "1.0"
        if self.chance(0.4):
            settings["evaluation"] = f"{{ every = 5, batches = {self.one(1, 2)} }}"
            if self.chance(0.4):
                strategy["evaluation_pass"] = "grad"

    def program(self):
        """Values of `set`, in TOML, and keys of the strategy."""
        model = self.model()
        batch = self.one(1, 2, 3, 4, 5, 8, 16)
        settings = {f"model.transformer.{key}": toml(value) for key, value in model.items()}
        settings["train.batch_size"] = str(batch)
        strategy = self.dtypes() | self.attention() | self.loss()
        if self.chance(0.08):
            settings["measure.what"] = '"inference"'
            for key in ("master_weights", "optimizer_state", "gradient_dtype", "loss_scale"):
                strategy.pop(key, None)
        else:
            self.training(settings, strategy, model, batch)
        return settings, strategy


class OffloadDraw(Draw):
    """One program under `torch.autograd.graph.save_on_cpu`."""

    def program(self):
        settings, strategy = super().program()
        settings.pop("measure.what", None)
        context = int(settings["model.transformer.context"])
        if self.chance(0.3) and settings.get("model.transformer.causal") is None:
            settings["model.transformer.window"] = str(self.one(context // 3, context // 2))
        strategy["offload"] = {"activations": True, "pinned": self.chance(0.6)}
        return settings, strategy


class LibraryDraw(Draw):
    """One program with a model of the transformers library."""

    def model(self):
        family = self.one("gpt2", "llama", "llama", "mistral", "qwen2", "qwen3")
        model = super().model()
        width, heads = model["d_model"], model["heads"]
        sizes = {key: model[key] for key in ("layers", "d_model", "heads", "context", "vocabulary")}
        sizes |= {"family": family, "tied": self.chance(0.5)}
        if self.chance(0.3):
            sizes["d_ff"] = self.one(2 * width, 3 * width, 8 * (width // 3) + 8)
        if family == "gpt2":
            sizes["activation"] = self.one("gelu_tanh", "gelu_tanh", "gelu", "relu", "silu")
            if self.chance(0.5):
                sizes["dropout"] = self.one({"embedding": 0.1, "attention": 0.1, "residual": 0.1}, {"residual": 0.2})
            return sizes
        sizes |= {"positions": "rotary", "norm": "rms", "activation": self.one("swiglu", "swiglu", "geglu"), "bias": False}
        sizes["kv_heads"] = self.one(*(count for count in range(1, heads + 1) if heads % count == 0))
        if family == "llama" and self.chance(0.3):
            sizes["bias"] = True
        if family == "qwen2":
            sizes["qkv_bias"] = True
        if family == "qwen3":
            sizes["qk_norm"] = True
        if self.chance(0.2):
            sizes["dropout"] = {"attention": 0.1}
        return sizes

    def attention(self):
        return {}

    def loss(self):
        return {"keep": ["head.logits"]} if self.chance(0.2) else {}

    def recompute(self, layers):
        return self.one({}, {"recompute": "block"}, {"recompute": {"every": 2}})

    def freeze(self, model):
        return {"freeze": [self.one("embedding", "blocks.0", *(["head"] * (not model["tied"])))]}

    def program(self):
        settings, strategy = super().program()
        can_adapt = '"gpt2"' not in settings["model.transformer.family"] and "measure.what" not in settings
        if can_adapt and self.chance(0.5):
            for key in ("freeze", "update", "params", "master_weights", "optimizer_state", "gradient_dtype", "residual", "loss_scale"):
                strategy.pop(key, None)
            targets = self.one(["all-linear"], ["all-linear"], ["q_proj", "v_proj"], ["gate_proj", "down_proj"])
            lora = {"rank": self.one(2, 8, 16), "alpha": 16, "targets": targets}
            if self.chance(0.5):
                lora["dropout"] = 0.1
            base = self.one("fp32", "16-bit", "16-bit autocast")
            if base == "16-bit":
                strategy.pop("precision", None)
                strategy |= {"params": "bf16", "residual": "bf16"}
            elif base == "16-bit autocast":
                strategy |= {"precision": "bf16"}
                lora |= {"base": "bf16", "tables": "bf16"}
            strategy["lora"] = lora
        return settings, strategy


class FamiliesDraw(LibraryDraw):
    """One program with a class of the library that differs from Llama's, with its eager attention or with windows."""

    FAMILIES = ["olmo2", "olmo3", "phi3", "starcoder2", "gemma2", "gemma3_text", "gpt_neox", "phi", "falcon", "mistral"]
    PARALLEL = ["gpt_neox", "phi", "falcon"]

    def model(self):
        model = super().model()
        while model["family"] == "gpt2":
            model = super().model()
        for key in ("qkv_bias", "qk_norm"):
            model.pop(key, None)
        family = self.one(*self.FAMILIES)
        model |= {"family": family, "bias": False} | getattr(self, family)(model)
        is_mixed = family in ("olmo3", "gemma2", "gemma3_text")
        if family not in ("olmo2", *self.PARALLEL) and (is_mixed or self.chance(0.6)):
            model["window"] = self.one(model["context"] // 3, model["context"], 2 * model["context"])
            model |= {"global_every": 2} if is_mixed else {}
        return model

    def dropout(self, *parts):
        return {"dropout": {part: 0.1 for part in parts if self.chance(0.5)}} if self.chance(0.5) else {}

    def part(self, model):
        """Rotation of a part of the channels."""
        return {"rotary": {"channels": 2 * self.random.randint(1, model["d_model"] // model["heads"] // 2 - 1)}}

    def mistral(self, model):
        return {}

    def olmo2(self, model):
        return {"norm_placement": "output", "qk_norm": True, "qk_norm_over": "all_heads"}

    def olmo3(self, model):
        return self.olmo2(model) | {"rotary": {"window_base": 10000.0}}

    def phi3(self, model):
        rotary = self.part(model) if self.chance(0.5) else {}
        return self.dropout("attention", "residual") | rotary

    def starcoder2(self, model):
        activation = self.one("gelu_tanh", "gelu_tanh", "gelu", "relu")
        own = {"norm": "layer", "bias": self.chance(0.8), "activation": activation}
        return own | self.dropout("embedding", "attention", "residual")

    def gemma2(self, model):
        shared = {"norm": "rms_zero_centered", "norm_epsilon": 1e-6, "norm_placement": "sandwich", "tied": True}
        shared |= {"activation": "geglu_tanh", "embedding_scale": model["d_model"] ** 0.5, "attention_scale": 0.125}
        caps = {"attention_softcap": 50.0, "logit_softcap": 30.0} if self.chance(0.7) else {}
        return shared | caps

    def gemma3_text(self, model):
        own = {key: value for key, value in self.gemma2(model).items() if "cap" not in key}
        return own | {"qk_norm": True, "rotary": {"window_base": 10000.0}}

    def gpt_neox(self, model):
        own = {"kv_heads": model["heads"], "norm": "layer", "bias": True, "activation": "gelu"}
        own |= {"sub_layers": self.one("parallel", "parallel", "sequential")}
        return own | self.part(model) | self.dropout("embedding", "attention", "residual")

    def phi(self, model):
        own = {"norm": "layer", "bias": True, "head_bias": True, "tied": False, "activation": "gelu_tanh"}
        own |= {"sub_layers": "parallel_shared_norm"}
        return own | self.part(model) | self.dropout("embedding", "attention", "residual")

    def falcon(self, model):
        own = {"norm": "layer", "activation": "gelu", "dropout": 0.0}
        return own | self.one({"kv_heads": 1, "sub_layers": "parallel_shared_norm"}, {"sub_layers": "parallel"})

    def program(self):
        settings, strategy = super().program()
        family = json.loads(settings["model.transformer.family"])
        if family == "gemma2" or family not in self.PARALLEL and self.chance(0.4):
            strategy["attention"] = "materialized"
        if "lora" in strategy:
            strategy["lora"]["targets"] = ["all-linear"]
        return settings, strategy


class KernelsDraw(FamiliesDraw):
    """One program with liger-kernel's layers, of a family that it has."""

    FAMILIES = ["llama", "llama", "qwen2", "qwen3", "mistral", "olmo2", "olmo3", "phi3", "gemma2", "gemma3_text"]

    def model(self):
        model = super().model()
        if "gemma" not in model["family"]:
            model["activation"] = "swiglu"
        return model

    def llama(self, model):
        return {}

    def qwen2(self, model):
        return {"qkv_bias": True}

    def qwen3(self, model):
        return {"qk_norm": True}

    def loss(self):
        return {"loss_chunks": 8} if self.chance(0.6) else super().loss()


class TrainerDraw(LibraryDraw):
    """One program with the library's Trainer."""

    def loss(self):
        return {}

    def program(self):
        settings, strategy = super().program()
        settings.pop("measure.what", None)
        for key in ("update", "gradients"):
            strategy.pop(key, None)
        # Trainer has no master weights; its micro-batches are of one size.
        if "params" in strategy and "lora" not in strategy:
            for key in ("residual", "gradient_dtype", "loss_scale"):
                strategy.pop(key, None)
            strategy |= {"params": "bf16", "master_weights": False, "optimizer_state": "bf16"}
        settings["train.batch_size"] = str(self.one(1, 2, 3, 5, 8, 16) * strategy.get("accumulate", 1))
        settings.setdefault("train.optimizer", "{ adamw = { lr = 1e-3 } }")
        if "sgd" in settings["train.optimizer"]:
            strategy.pop("optimizer_state", None)
        if self.chance(0.5):
            evaluation = {"every": 5, "batches": self.one(1, 2, 3, 5)}
            if self.chance(0.5):
                evaluation["batch_size"] = self.one(1, 2, 4)
            if self.chance(0.6):
                what, to = self.one("logits", "logits", "loss"), self.one("device", "device", "host")
                evaluation["collect"] = {"what": what, "to": to, "concatenate": self.chance(0.7)}
            settings["evaluation"] = toml(evaluation)
        else:
            settings.pop("evaluation", None)
        strategy.pop("evaluation_pass", None)
        return settings, strategy


class BitsandbytesDraw(TrainerDraw):
    """One program with the library's Trainer and bitsandbytes."""

    def model(self):
        model = super().model()
        while model["family"] == "gpt2":
            model = super().model()
        return model

    def program(self):
        settings, strategy = super().program()
        if self.chance(0.7):
            for key in ("params", "master_weights", "optimizer_state", "residual", "precision"):
                strategy.pop(key, None)
            if "lora" not in strategy:
                strategy.pop("freeze", None)
                strategy["lora"] = {"rank": 8, "alpha": 16, "targets": self.one(["all-linear"], ["q_proj", "v_proj"])}
            lora = strategy["lora"]
            lora.pop("tables", None)
            lora |= {"base": "nf4", "double_quantization": self.chance(0.7)}
            strategy |= self.one({"precision": "bf16"}, {"precision": "fp16"}, {"params": "bf16", "residual": "bf16"}, {})
            if "precision" in strategy and self.chance(0.5):
                lora["tables"] = strategy["precision"]
            # More than 256 rows in all micro-batches.
            context, micro_batches = int(settings["model.transformer.context"]), strategy.get("accumulate", 1)
            samples = 256 // context + self.random.randint(1, max(1, 1500 // context))
            settings["train.batch_size"] = str(samples * micro_batches)
            settings.pop("evaluation", None)
        if self.chance(0.6):
            strategy["optimizer_state"] = "8bit"
            settings["train.optimizer"] = self.one("{ adamw = { lr = 1e-3 } }", "{ adam = { lr = 1e-3 } }", "{ lion = { lr = 1e-4 } }")
        elif self.chance(0.3):
            strategy["optimizer_state"] = "fp32"
            settings["train.optimizer"] = "{ lion = { lr = 1e-4 } }"
        return settings, strategy


class DocumentsDraw:
    """One program on padded documents of different lengths."""

    def program(self):
        settings, strategy = super().program()
        for key in ("keep", "leak"):
            strategy.pop(key, None)
        if "loss_chunks" in strategy or self.chance(0.4):
            settings["data.text.pad_to_multiple_of"] = str(self.one(8, 16) if "loss_chunks" in strategy else self.one(2, 4, 8, 16))
        if self.chance(0.3):
            settings["train.shuffle"] = "true"
            settings["train.last_batch"] = '"keep"'
        settings["measure.warmup_steps"] = "1"
        settings["measure.steps"] = str(self.one(2, 3, 5))
        settings.pop("evaluation", None)
        if self.chance(0.5) and settings.get("measure.what") is None:
            evaluation = {"every": self.one(1, 2, 5), "batches": self.one(1, 2, 3)}
            if self.chance(0.5):
                evaluation["batch_size"] = self.one(1, 2, 4)
            settings["evaluation"] = toml(evaluation)
        return settings, strategy


class LibraryDocumentsDraw(DocumentsDraw, FamiliesDraw):
    """One with a class of the library."""


class TrainerDocumentsDraw(DocumentsDraw, TrainerDraw):
    """One with the library's Trainer."""


DIALECTS = {"bitsandbytes": "trainer", "families": "transformers", "kernels": "transformers", "documents": "transformers", "documents-trainer": "trainer"}
PROGRAMS = {
    "--transformers": LibraryDraw,
    "--trainer": TrainerDraw,
    "--bitsandbytes": BitsandbytesDraw,
    "--families": FamiliesDraw,
    "--kernels": KernelsDraw,
    "--offload": OffloadDraw,
    "--documents": LibraryDocumentsDraw,
    "--documents-trainer": TrainerDocumentsDraw,
}

DOCUMENTS = """\
[data.text]
paths = ["../vectors/documents/lines.jsonl"]
jsonl = "text"
documents = "padded"
pad_to = "batch"
"""


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(of)}" for key, of in value.items()) + " }"
    return json.dumps(value)


def main():
    arguments = sys.argv[1:]
    draw = PROGRAMS.get(arguments[0], Draw)
    seed, count = arguments[-2], int(arguments[-1])
    program = arguments[0].removeprefix("--") if draw is not Draw else None
    base = BASE.format(arguments=" ".join(arguments), name=f"{program}-drawn" if program else "drawn")
    if program and program.startswith("documents"):
        base = base.replace("[data.synthetic]\n", DOCUMENTS)
    print(base, end="")
    if issubclass(draw, LibraryDraw):
        print(LIBRARY.format(program=DIALECTS.get(program, program)), end="")
        print("torch_kernels = \"liger\"\n" * (program == "kernels"), end="")
    for number in range(1, count + 1):
        settings, strategy = draw(f"{seed}/{number}").program()
        print(f"\n[strategies.drawn-{number}]")
        for key, value in settings.items():
            print(f'set."{key}" = {value}')
        for key, value in strategy.items():
            print(f"{key} = {toml(value)}")


main()
