#!/usr/bin/env python3
"""Writes weights in the forms that quantizing libraries store, and their dequantized values.

    python tests/reference/quantized/make.py

bitsandbytes quantizes and dequantizes its own forms, on the CPU. fp8 and int8 with scales are computed by PyTorch: a
stored number times the scale of its block, row or tensor. Needs torch, safetensors and bitsandbytes (made with 2.15.0,
0.8.0 and 0.50.2).
"""

from pathlib import Path

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_dequant, int8_vectorwise_quant
from safetensors.torch import save_file

FOLDER = Path(__file__).parent


def four_bits(quant_type, double, dtype, outputs, inputs):
    """The tensors of a layer, by the end of their names, and its weight."""
    layer = bnb.nn.Linear4bit(
        inputs, outputs, bias=False, compute_dtype=dtype, compress_statistics=double, quant_type=quant_type,
        quant_storage=torch.uint8,
    )
    layer.weight = bnb.nn.Params4bit(
        torch.randn(outputs, inputs).to(dtype), requires_grad=False, quant_type=quant_type,
        compress_statistics=double, quant_storage=torch.uint8,
    )
    layer = layer.to("cpu")
    return layer.state_dict(), dequantize_4bit(layer.weight.data, layer.weight.quant_state)


def int8(outputs, inputs):
    codes, scales, _ = int8_vectorwise_quant(torch.randn(outputs, inputs, dtype=torch.float16))
    tensors = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return tensors, int8_vectorwise_dequant(codes, scales)


def scaled(name, outputs, inputs, scale, dtype=torch.float8_e4m3fn, block=1):
    numbers = torch.randn(outputs, inputs) * 50
    numbers = numbers.to(dtype)
    each = scale.float()
    if scale.dim() == 2 and block > 1:
        each = each.repeat_interleave(block, 0).repeat_interleave(block, 1)[:outputs, :inputs]
    return {"weight": numbers, name: scale}, numbers.float() * each


def main():
    torch.manual_seed(0)
    layers = {
        # More than 256 blocks: two scales of scales.
        "nf4_double": four_bits("nf4", True, torch.bfloat16, 130, 130),
        "nf4": four_bits("nf4", False, torch.float16, 24, 40),
        # The last block and the last byte are incomplete.
        "fp4_double": four_bits("fp4", True, torch.float32, 5, 15),
        # Rows of a block: with rows of 16, the library's CPU kernel takes other scales than its generic one.
        "fp4": four_bits("fp4", False, torch.bfloat16, 4, 64),
        "int8": int8(6, 10),
        "fp8_rows": scaled("weight_scale_inv", 130, 3, torch.rand(2, 1), block=128),
        "fp8_columns": scaled("weight_scale_inv", 3, 130, torch.rand(1, 2).bfloat16(), block=128),
        "fp8_channel": scaled("weight_scale", 6, 4, torch.rand(6, 1).bfloat16()),
        "fp8_tensor": scaled("weight_scale", 6, 4, torch.rand(1)),
        "int8_channel": scaled("weight_scale", 6, 4, torch.rand(6, 1), torch.int8),
    }
    stored = {f"{layer}.{end}": tensor for layer, (tensors, _) in layers.items() for end, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, FOLDER / "stored.safetensors")
    plain = {f"{layer}.weight": weight.contiguous() for layer, (_, weight) in layers.items()}
    save_file(plain, FOLDER / "dequantized.safetensors")


main()
