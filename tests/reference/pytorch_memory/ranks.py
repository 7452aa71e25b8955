"""Runs a script of several ranks as rank 0 under nullcuda, with a process group that communicates with nobody.

    WORLD_SIZE=2 python ranks.py train.py ...
"""

import ctypes
import os
import runpy
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg

keep_values = ctypes.CDLL(None).nullcuda_keep_values
keep_values.argtypes = [ctypes.c_bool]
initialize = distributed.init_process_group


def initialize_fake(*_arguments, **_settings):
    options = fake_pg.FakeProcessGroup.Options()
    options.simulate_uniform_ranks = True  # The results of collectives are tensors.
    size = int(os.environ["WORLD_SIZE"])
    initialize("fake", store=fake_pg.FakeStore(), rank=0, world_size=size, pg_options=options)


def with_values(function):
    """DistributedDataParallel compares parameters and the order of buckets with those that it gets back from the ranks."""

    def wrapped(*arguments, **settings):
        keep_values(True)
        try:
            return function(*arguments, **settings)
        finally:
            keep_values(False)

    return wrapped


distributed.init_process_group = initialize_fake
DistributedDataParallel.__init__ = with_values(DistributedDataParallel.__init__)
DistributedDataParallel._pre_forward = with_values(DistributedDataParallel._pre_forward)
os.environ.update(RANK="0", LOCAL_RANK="0")
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
