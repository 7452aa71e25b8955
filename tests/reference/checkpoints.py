#!/usr/bin/env python3
"""Writes a tiny checkpoint of each model type that `[model.hf]` reads, as Hugging Face's library saves it.

    python tests/reference/checkpoints.py tests/reference/vectors/hugging_face

Needs torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM, FalconConfig, GPT2Config, GPTNeoConfig, GPTNeoXConfig, Gemma2Config, Gemma3TextConfig, GemmaConfig, GraniteConfig, LlamaConfig,
    MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config, OlmoeConfig, Phi3Config, PhiConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig,
    SmolLM3Config, Starcoder2Config,
)

SHARED = {"vocab_size": 256, "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 24}
SHARED |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "head_dim": 6}
WITHOUT_HEAD_DIM = {key: value for key, value in SHARED.items() if key != "head_dim"}
ROTARY = {"rope_type": "default", "rope_theta": 100.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
LONGROPE = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.1, 1.2], "long_factor": [1.0, 2.0, 3.5]}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}

CONFIGS = {
    "gpt2": GPT2Config(vocab_size=256, n_positions=32, n_embd=16, n_layer=2, n_head=2),
    "llama": LlamaConfig(**SHARED, rms_norm_eps=1e-5, rope_parameters=LLAMA3 | {"rope_theta": 100.0}),
    "mistral": MistralConfig(**SHARED, sliding_window=5, rope_parameters=ROTARY),
    "qwen2": Qwen2Config(
        **WITHOUT_HEAD_DIM,
        tie_word_embeddings=True, use_sliding_window=True, sliding_window=7, max_window_layers=0, rope_parameters=ROTARY,
    ),
    "qwen3": Qwen3Config(**SHARED, rope_parameters=ROTARY),
    "gemma2": Gemma2Config(
        **SHARED, sliding_window=5, query_pre_attn_scalar=8, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
        rope_parameters=ROTARY,
    ),
    "gemma": GemmaConfig(**SHARED, rope_parameters=ROTARY),
    # Trained on fewer positions than the context: with the long factors, and an attention factor above 1.
    "phi3": Phi3Config(
        **{key: value for key, value in SHARED.items() if key not in ("head_dim", "hidden_size")},
        hidden_size=24, original_max_position_embeddings=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        rope_parameters=LONGROPE,
    ),
    "starcoder2": Starcoder2Config(
        **WITHOUT_HEAD_DIM, sliding_window=5, rope_parameters=YARN,
    ),
    "gpt_neo": GPTNeoConfig(
        vocab_size=256, max_position_embeddings=32, hidden_size=16, num_layers=2, num_heads=2, window_size=5,
        attention_types=[[["global", "local"], 1]],
    ),
    # A block with a window and its own base, then one of the full context with scaling.
    "gemma3_text": Gemma3TextConfig(
        **SHARED, sliding_window=5, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
        },
    ),
    "smollm3": SmolLM3Config(
        **WITHOUT_HEAD_DIM, no_rope_layer_interval=2,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
        rope_parameters=ROTARY,
    ),
    "granite": GraniteConfig(
        **WITHOUT_HEAD_DIM, rope_parameters=ROTARY,
        embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.7, logits_scaling=2.5,
    ),
    "olmo2": Olmo2Config(**WITHOUT_HEAD_DIM, eos_token_id=2, rope_parameters=ROTARY),
    # A block with a window and its own base, then one of the full context with scaling and its factor of scores.
    "olmo3": Olmo3Config(
        **WITHOUT_HEAD_DIM, eos_token_id=2, sliding_window=5, layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": YARN,
        },
    ),
    "gpt_neox": GPTNeoXConfig(
        vocab_size=256, max_position_embeddings=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, rotary_pct=0.5, rotary_emb_base=100,
    ),
    "phi": PhiConfig(**WITHOUT_HEAD_DIM | {"hidden_size": 40}, partial_rotary_factor=0.4, rope_theta=100.0),
    # Queries that share a key, and a norm each; then all queries share a key, and both parts a norm.
    "falcon": FalconConfig(
        vocab_size=256, max_position_embeddings=32, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_kv_heads=2, new_decoder_architecture=True, rope_theta=100.0,
    ),
    "falcon_7b": FalconConfig(
        vocab_size=256, max_position_embeddings=32, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, bias=True,
        rope_theta=100.0,
    ),
    "mixtral": MixtralConfig(**SHARED, num_local_experts=4, num_experts_per_tok=2, sliding_window=5, rope_parameters=ROTARY),
    # Weights that are divided by their sum, and weights that are not.
    "qwen3_moe": Qwen3MoeConfig(
        **SHARED, moe_intermediate_size=12, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True,
        rope_parameters=ROTARY,
    ),
    "olmoe": OlmoeConfig(
        **WITHOUT_HEAD_DIM, num_experts=6, num_experts_per_tok=2, pad_token_id=0, eos_token_id=2, rope_parameters=ROTARY,
    ),
}
# Stored dtype if not fp32, and largest shard if sharded.
DTYPES = {"llama": torch.bfloat16, "mistral": torch.float16}
SHARDED = {"qwen3": "16KB"}


def main():
    folder = Path(sys.argv[1])
    for seed, (name, config) in enumerate(CONFIGS.items()):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for tensor in model.parameters():
            # Far from an initialisation: every norm and bias affects the result, and attention is sharp.
            torch.nn.init.normal_(tensor, std=0.2) if tensor.dim() > 1 else tensor.data.add_(torch.randn_like(tensor), alpha=0.2)
        model = model.to(DTYPES.get(name, torch.float32))
        model.save_pretrained(folder / name, max_shard_size=SHARDED.get(name, "1GB"))
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        if name == "llama":
            as_before(folder / name / "config.json")


def as_before(path):
    """Rewrites the fields for rotary positions and dtype as version 4 of the library wrote them."""
    config = json.loads(path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


main()
