"""Runs a script of the transformers library under nullcuda, which has no values to read back: gives what the library would read.

    python values.py train.py ...
"""

import runpy
import sys

import torch
import transformers
from accelerate import accelerator
from accelerate.utils import operations
from transformers import masking_utils
from triton.runtime import jit

find = masking_utils.find_packed_sequence_indices
pad = operations.pad_across_processes


def find_none(position_ids):
    """Positions are not those of several packed sequences."""
    find(position_ids)  # requests memory


def launch_nothing(kernel, *arguments, **settings):
    """Triton's compiler and launcher need a driver. Kernels request no memory."""


def pad_none(tensor, dim=0, **arguments):
    """One process has tensors of one size."""
    shapes = torch.tensor([tensor.shape])
    operations.gather = lambda sizes: shapes
    return pad(tensor, dim, **arguments)


if transformers.__version__.startswith("5."):  # 4.x reads nothing, and always makes a mask
    masking_utils.find_packed_sequence_indices = find_none
accelerator.pad_across_processes = pad_none
jit.JITFunction.run = launch_nothing
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
