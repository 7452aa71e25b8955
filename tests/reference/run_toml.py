"""Reads the parts of a `run.toml` that affect numerical results."""

import tomllib

from transformer import ACTIVATIONS, GATES, NORMS

# Strategy keys that affect numerical results.
KEYS = {"accumulate", "params", "master_weights", "gradient_dtype", "residual", "lora"}
KEYS |= {"input_dtype", "precision", "loss_scale", "optimizer_state", "quantize", "rounding", "recompute", "freeze"}

# Strategy keys that never affect numerical results: allocation and release, CUDA graphs, initialisation, loading of
# batches.
MEMORY_ONLY = {"release", "keep", "leak", "gradients", "update", "allocator", "empty_cache"}
MEMORY_ONLY |= {"evaluation_pass", "graph", "init", "loader"}

# Strategy keys that affect only the order of sums.
ROUNDING_ONLY = {"attention", "conv_workspace", "loss_chunks", "offload", "place"}

# `weights`, `initial_deviation` and `family` have no effect here: a dump holds the initial parameters, wherever they came from.
MODEL_KEYS = {"layers", "heads", "d_model", "context", "vocabulary", "weights", "initial_deviation", "family"}
# The keys of a block, with GPT-2's values, which hold for older runs without the keys. The keys in IN_PARAMETERS follow
# from the parameters of the dump.
BLOCK_KEYS = {"activation": "gelu_tanh", "norm": "layer", "norm_epsilon": 1e-5, "positions": "learned"}
BLOCK_KEYS |= {"rotary": {"base": 10000.0, "scaling": "off"}, "causal": True, "window": "off", "global_every": "off"}
BLOCK_KEYS |= {"global_first": "off"}
BLOCK_KEYS |= {"attention_scale": "off", "attention_softcap": "off", "qk_norm": False, "norm_placement": "pre"}
BLOCK_KEYS |= {"embedding_scale": "off", "logit_softcap": "off", "dropout": 0.0}
BLOCK_KEYS |= {"residual_scale": "off", "logit_scale": "off", "window_attention_scale": "off"}
BLOCK_KEYS |= {"qk_norm_over": "head", "sub_layers": "sequential", "experts": "off"}
IN_PARAMETERS = {"head_dim", "d_ff", "bias", "qkv_bias", "tied", "head_bias"}

# The places of dropout.
DROPOUT = {"embedding", "attention", "residual"}
# The keys of low-rank adaptation.
LORA = {"rank", "alpha", "targets", "base", "double_quantization"}

# The keys of each optimizer.
OPTIMIZERS = {
    "adafactor": {"lr", "beta2_decay", "epsilon", "scale_epsilon", "clip_threshold", "weight_decay", "decay"},
    "adam": {"lr", "beta1", "beta2", "epsilon", "weight_decay", "decay"},
    "adamw": {"lr", "beta1", "beta2", "epsilon", "weight_decay", "decay"},
    "lion": {"lr", "beta1", "beta2", "weight_decay", "decay"},
    "muon": {"lr", "adamw", "momentum", "nesterov", "weight_decay", "ns_steps", "epsilon", "adjust"},
    "sgd": {"lr", "momentum", "nesterov", "weight_decay", "decay"},
}

# The keys of each schedule.
SCHEDULES = {
    "constant": {"warmup"},
    "linear": {"warmup", "total", "floor"},
    "cosine": {"warmup", "total", "floor"},
    "warmup_stable_decay": {"warmup", "decay", "total", "floor"},
}

PRECISIONS = {"fp32", "tf32", "bf16", "fp16"}


class CannotRepeat(Exception):
    """A run that these scripts cannot repeat, with the reason."""


class Run:
    """The parts of a `run.toml` that affect numerical results."""

    def __init__(self, file):
        config = read_toml(file)
        # The layers of a list, or None.
        self.sequential = config["model"].get("sequential")
        if self.sequential is None:
            self.read_transformer(only_variant(config, "model", "transformer"))
        else:
            expect_keys("model", self.sequential, {"input", "layers", "loss", "weights"})
            # Steps are measured in samples.
            self.context = 1
        self.read_training(config)

    def read_transformer(self, model):
        expect_keys("model", model, MODEL_KEYS | BLOCK_KEYS.keys() | IN_PARAMETERS | {"kv_heads"})
        self.layers, self.heads = model["layers"], model["heads"]
        self.d_model, self.context, self.vocabulary = model["d_model"], model["context"], model["vocabulary"]

        block = {key: model.get(key, default) for key, default in BLOCK_KEYS.items()}
        self.activation, self.norm, self.positions = block["activation"], block["norm"], block["positions"]
        self.norm_epsilon, self.rotary = block["norm_epsilon"], block["rotary"]
        self.kv_heads, self.causal = model.get("kv_heads", self.heads), block["causal"]
        self.window, self.global_every = unless_off(block["window"]), unless_off(block["global_every"])
        self.global_first = unless_off(block["global_first"])
        self.qk_norm, self.norm_placement = block["qk_norm"], block["norm_placement"]
        expect_word("norm_placement", self.norm_placement, {"pre", "post", "sandwich", "output"})
        self.qk_norm_over, self.sub_layers = block["qk_norm_over"], block["sub_layers"]
        expect_word("qk_norm_over", self.qk_norm_over, {"head", "all_heads"})
        expect_word("sub_layers", self.sub_layers, {"sequential", "parallel", "parallel_shared_norm"})
        self.experts = unless_off(block["experts"])
        if self.experts:
            expect_keys("experts", self.experts, {"count", "per_token", "normalize"})
        self.embedding_scale, self.logit_softcap, self.residual_scale, self.logit_scale = (
            unless_off(block[key]) for key in ("embedding_scale", "logit_softcap", "residual_scale", "logit_scale")
        )
        self.attention_scale = unless_off(block["attention_scale"])
        self.window_attention_scale = unless_off(block["window_attention_scale"])
        self.attention_softcap = unless_off(block["attention_softcap"])
        # One rate for all places, or one for each.
        rates = block["dropout"]
        self.dropout = rates if isinstance(rates, dict) else dict.fromkeys(DROPOUT, rates)
        expect_keys("dropout", self.dropout, DROPOUT)
        expect_word("activation", self.activation, ACTIVATIONS.keys() | GATES.keys())
        expect_word("norm", self.norm, NORMS)
        expect_word("positions", self.positions, {"learned", "rotary", "none"})
        expect_keys("rotary", self.rotary, {"base", "channels", "scaling", "divisors", "window_base", "skip_every"})

    def read_training(self, config):
        train = config["train"]
        keys = {"batch_size", "clip_norm", "seed", "shuffle", "last_batch", "optimizer", "schedule"}
        expect_keys("train", train, keys)
        # The dump has the batches in their order. The loss of an incomplete batch is the mean over its samples.
        expect_word("last_batch", train.get("last_batch", "drop"), {"drop", "keep"})
        self.batch_size = train["batch_size"]
        self.clip_norm = unless_off(train["clip_norm"])
        [self.optimizer] = train["optimizer"]
        expect_word("optimizer", self.optimizer, set(OPTIMIZERS))
        self.update = train["optimizer"][self.optimizer]
        expect_keys(self.optimizer, self.update, OPTIMIZERS[self.optimizer] | {"groups"})
        for decay in [self.update.get("decay"), self.update.get("adamw", {}).get("decay")]:
            expect_word("decay", decay, {"matrices", "all", None})
        # Older runs without the key have no groups.
        self.groups = self.update.get("groups", [])
        for group in self.groups:
            expect_keys("a group", group, {"match", "lr", "weight_decay"})
        # Older runs without the key have a constant learning rate.
        [self.schedule] = train.get("schedule", {"constant": {"warmup": 0}}).items()
        expect_word("schedule", self.schedule[0], set(SCHEDULES))
        expect_keys(self.schedule[0], self.schedule[1], SCHEDULES[self.schedule[0]])
        self.warmup_steps = config["measure"]["warmup_steps"]
        self.steps = self.warmup_steps + config["measure"]["steps"]
        self.schedule_steps = unless_off(self.schedule[1].get("total", "off")) or self.steps
        # Older runs without the key are training runs.
        what = config["measure"].get("what", "training")
        expect_word("measure.what", what, {"training", "inference"})
        self.is_inference = what == "inference"

        [(self.name, strategy)] = config["strategies"].items()
        expect_keys("strategy", strategy, KEYS | MEMORY_ONLY | ROUNDING_ONLY)
        self.accumulate = strategy["accumulate"]
        # Recomputation never changes the numbers. Speeds are compared only for the choices that PyTorch can repeat.
        self.recompute = strategy["recompute"] == "block"
        self.recomputes_otherwise = strategy["recompute"] not in ("none", "block")
        self.frozen_layers = strategy["freeze"]
        # Older runs without the keys store everything in fp32.
        self.params = strategy.get("params", "fp32")
        self.has_master_weights = self.params != "fp32" and strategy["master_weights"]
        self.residual = strategy.get("residual", "fp32")
        expect_word("input_dtype", strategy.get("input_dtype", "fp32"), {"fp32"})
        # PyTorch's gradients have the parameters' dtype.
        expect_word("gradient_dtype", strategy.get("gradient_dtype", "fp32"), {self.params})
        self.lora = None if strategy.get("lora", "off") == "off" else strategy["lora"]
        if self.lora:
            expect_keys("lora", self.lora, LORA)
            expect_word("lora.base", self.lora["base"], {"params", "fp32", "bf16", "fp16", "int8", "nf4"})
        self.precision = strategy["precision"]
        if self.params != "fp32":
            expect_word("precision", self.precision, {self.params})
        expect_word("precision", self.precision, PRECISIONS)
        self.loss_scale = loss_scale(strategy["loss_scale"])
        # Older runs without the key, such as those of stored vectors, have fp32 states.
        self.optimizer_state = strategy.get("optimizer_state", "fp32")
        expect_word("optimizer_state", self.optimizer_state, {"fp32", "bf16", "8bit"})
        self.quantize = strategy.get("quantize", {"from": 4096, "embeddings": False})
        expect_keys("quantize", self.quantize, {"from", "embeddings"})
        # PyTorch lacks the random generator of stochastic rounding.
        expect_word("rounding", strategy.get("rounding", "nearest"), {"nearest"})

    def is_trained(self, parameter):
        """Whether the parameter of that name is trained. A `run.toml` lists frozen layers by full name."""
        if self.is_inference or parameter.endswith((".running_mean", ".running_var")):
            return False
        if self.lora:
            return parameter.endswith((".lora_A", ".lora_B"))
        return not any(parameter.startswith(f"{layer}.") for layer in self.frozen_layers)

    def title(self):
        model = f"{len(self.sequential['layers'])} entries of layers" if self.sequential else (
            f"{self.layers} layers, d_model {self.d_model}, {self.heads} heads, "
            f"context {self.context}, vocabulary {self.vocabulary}"
        )
        return (
            f"{self.name}: {model}\n"
            f"batch {self.batch_size}, accumulate {self.accumulate}, {self.precision}, parameters {self.params}, "
            f"recompute {'block' if self.recompute else 'none'}, clip_norm {self.clip_norm or 'off'}"
            f"{', frozen: ' + ', '.join(self.frozen_layers) if self.frozen_layers else ''}"
            f"{', adapted: ' + ', '.join(self.lora['targets']) if self.lora else ''}"
        )


def unless_off(written):
    return None if written == "off" else written


def loss_scale(written):
    """The keys of `GradScaler`; `None` without a loss scale. A constant scale has only `initial`."""
    if written == "off":
        return None
    return written["dynamic"] if isinstance(written, dict) else {"initial": written}


def only_variant(table, key, known):
    variants = list(table[key])
    if variants != [known]:
        raise CannotRepeat(f"{key} is `{', '.join(variants)}`: this script supports only `{known}`")
    return table[key][known]


def expect_keys(name, table, known):
    for key in table.keys() - known:
        raise CannotRepeat(f"this script does not support `{key} = {table[key]!r}` ({name})")


def expect_word(key, word, known):
    if word not in known:
        raise CannotRepeat(f"this script does not support `{key} = {word!r}`")


def read_toml(path):
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise CannotRepeat(f"cannot read {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise CannotRepeat(f"{path} is not a TOML file: {error}") from error
