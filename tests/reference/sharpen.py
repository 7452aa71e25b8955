#!/usr/bin/env python3
"""Scales the initial weights of attention and MLP inputs. Unscaled, a small model has near-uniform attention and
near-linear activations, which would hide errors.

    python tests/reference/sharpen.py 5 initial.safetensors sharp.safetensors
"""

import sys

from safetensors.torch import load_file, save_file

factor, source, sink = sys.argv[1:]
tensors = load_file(source)
for name, tensor in tensors.items():
    if name.endswith(("attention.qkv.weight", "mlp.up.weight", "mlp.gate_up.weight")):
        tensor *= float(factor)
save_file(tensors, sink)
