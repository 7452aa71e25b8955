"""Runs a script of the transformers library under nullcuda, which has no values to read back: gives what the library would read.

    python values.py train.py ...
"""

import runpy
import sys
import weakref

import torch
import transformers
from accelerate import accelerator
from accelerate.utils import operations
from transformers import masking_utils
from triton.runtime import jit

find = masking_utils.find_packed_sequence_indices
pad = operations.pad_across_processes
to = torch.Tensor.to
# Matrices of integers on the card, and those on the host that they are copies of, by address.
copies = {}


def host_of(tensor):
    """The values of a copy, or of a part that begins with it. None: other tensors, which may have the address of a former copy."""
    copy, host = copies.get(tensor.data_ptr(), (None, None))
    return host if copy is not None and copy() is not None else None


def to_and_remember(tensor, *arguments, **settings):
    copy = to(tensor, *arguments, **settings)
    if tensor.ndim == 2 and not tensor.is_floating_point() and copy.is_cuda:
        host = host_of(tensor) if tensor.is_cuda else tensor
        copies[copy.data_ptr()] = weakref.ref(copy), host
    return copy


def all_of_host(tensor):
    host = host_of(tensor)
    return host is not None and bool(host.all())


def find_in_host(position_ids):
    """Positions that the library makes itself are not those of several packed sequences."""
    sequences = find(position_ids)  # requests memory
    host = host_of(position_ids)
    return sequences if host is not None and (host.diff() != 1).any() else None


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
        return all_of_host(mask)

    masking_utils.find_packed_sequence_indices = find_in_host
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
