#!/usr/bin/env python3
"""Writes inverse frequencies and attention factors of scaled rotary positions, as Hugging Face's library computes them.

    python tests/reference/rotary.py > tests/reference/vectors/rotary.json

Needs torch and transformers. Each case is a configuration with the sequence length of the first forward pass.
"""

import json

import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

FAMILIES = {"llama": (LlamaConfig, LlamaRotaryEmbedding), "phi3": (Phi3Config, Phi3RotaryEmbedding)}
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "max_position_embeddings": 256}
PAIRS = 16
SHORT = [1.0 + 0.05 * pair for pair in range(PAIRS)]
LONG = [1.0 + 0.1 * pair * pair for pair in range(PAIRS)]

# Model type, fields beside SIZES, and sequence length.
CASES = [
    ("llama", {"rope_theta": 5e5}, 64),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}}, 64),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 256),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_theta": 1e6}, 700),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, 256),
    ("llama", {"rope_scaling": {"type": "yarn", "factor": 4.0}, "head_dim": 128, "rope_theta": 1e6}, 64),
    (
        "llama",
        {"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e5, "factor": 8.0, "original_max_position_embeddings": 32,
            "beta_fast": 20, "beta_slow": 2, "truncate": False, "mscale": 1.2, "mscale_all_dim": 0.7,
        }},
        256,
    ),
    (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9, "original_max_position_embeddings": 128}},
        256,
    ),
    ("llama", {"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }}, 256),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}, "original_max_position_embeddings": 64},
        64,
    ),
    (
        "phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}, "original_max_position_embeddings": 64},
        65,
    ),
    (
        "phi3",
        {
            "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG, "attention_factor": 1.3},
            "original_max_position_embeddings": 64,
        },
        256,
    ),
]


def main():
    cases = []
    for model_type, changes, length in CASES:
        written = {"model_type": model_type} | SIZES | changes
        config, rotary = FAMILIES[model_type]
        module = rotary(config(**{"pad_token_id": 0} | json.loads(json.dumps(written))))
        module(torch.zeros(1), torch.arange(length)[None])
        case = {"config": written, "length": length, "inverse_frequencies": module.inv_freq.tolist()}
        cases.append(case | {"attention_factor": module.attention_scaling})
    print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")


main()
