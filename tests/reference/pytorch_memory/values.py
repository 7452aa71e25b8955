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
to = torch.Tensor.to
# The matrices of integers that tensors on the card were copied from, by address.
hosts = {}


def to_and_remember(tensor, *arguments, **settings):
    copy = to(tensor, *arguments, **settings)
    if tensor.ndim == 2 and not tensor.is_floating_point() and copy.is_cuda:
        hosts[copy.data_ptr()] = hosts.get(tensor.data_ptr()) if tensor.is_cuda else tensor
    return copy


def all_of_host(tensor):
    return bool(hosts[tensor.data_ptr()].all())


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


if transformers.__version__.startswith("5."):
    fast_all = masking_utils.fast_all

    def fast_all_of_host(mask):
        fast_all(mask)  # requests memory
        # Later calls look at a part of the mask, which has no padding elsewhere.
        return mask.data_ptr() in hosts and all_of_host(mask)

    masking_utils.find_packed_sequence_indices = find_none
    masking_utils.fast_all = fast_all_of_host
else:  # 4.x reads only masks, and always makes one for packed sequences
    ignore = masking_utils._ignore_causal_mask_sdpa

    def ignore_without_padding(padding_mask, query_length, kv_length, kv_offset, local_attention_size=None):
        ignored = ignore(padding_mask, query_length, kv_length, kv_offset, local_attention_size)
        is_window = local_attention_size is not None and kv_length >= local_attention_size
        return ignored or not is_window and padding_mask is not None and all_of_host(padding_mask)

    masking_utils._ignore_causal_mask_sdpa = ignore_without_padding
torch.Tensor.to = to_and_remember
accelerator.pad_across_processes = pad_none
jit.JITFunction.run = launch_nothing
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
