"""Dequantizes the parameters that `lora.base` stores in codes. Written from the definitions of the formats."""

import torch

from states import dynamic_map

# Elements per scale, and scales per second-level scale.
NF4_BLOCK, QUANTIZED_BLOCK = 64, 256

# NormalFloat4 (Dettmers et al. 2023, appendix E).
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Out and in features of a block's linear layers, over d_model.
FEATURES = {"qkv": (3, 1), "attention.out": (1, 1), "up": (4, 1), "mlp.out": (1, 4)}


def as_numbers(run, tensors):
    """All parameters by name, in the dtype of training; quantized ones in f32."""
    parameters = {name: tensor for name, tensor in tensors.items() if not name.endswith(".scales")}
    return {name: number(run, name, tensor, tensors) for name, tensor in parameters.items()}


def number(run, name, stored, tensors):
    if stored.is_floating_point():
        return stored.to(DTYPES[run.params])
    scales = tensors[f"{name}.scales"]
    if run.lora["base"] == "int8":
        return (stored.float() - 128) * scales[:, None]
    if not scales.is_floating_point():
        scales = scales_of_codes(scales, tensors[f"{name}.scales.scales"])
    shares = torch.tensor(NF4)[torch.stack([stored & 15, stored >> 4], dim=1).flatten().long()]
    [shape] = [shape for layer, shape in FEATURES.items() if name.endswith(f"{layer}.weight")]
    shape = [run.d_model * part for part in shape]
    count = shape[0] * shape[1]
    return (shares[:count] * scales.repeat_interleave(NF4_BLOCK)[:count]).view(shape)


def scales_of_codes(codes, of_scales):
    """The scales of double quantization. `of_scales` holds their mean, then one scale per block of codes."""
    shares = dynamic_map(signed=True).float()[codes.long()]
    return shares * of_scales[1:].repeat_interleave(QUANTIZED_BLOCK)[: len(codes)] + of_scales[0]
