#!/usr/bin/env python3
"""Runs an exported script and writes PyTorch's memory snapshot of it.

    runner export snapshot.toml --run autocast --target a100-80gb --out script.py
    NULLCUDA_DEVICE=a100 bash nullcuda/run.sh PYTHON NULLCUDA record_snapshot.py script.py snapshot.pickle --steps 2
"""

import os
import pickle
import runpy
import sys

import torch

script, out, *arguments = sys.argv[1:]
sys.argv = [script, *arguments]
torch.cuda.init()
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
leave = os._exit


def dump(status):
    """The script ends with `os._exit`. As `_dump_snapshot`, without the folders of this machine."""
    snapshot = torch.cuda.memory._snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for entry in snapshot["device_traces"][0] + snapshot["segments"] + blocks:
        for frame in entry.get("frames", []):
            folder, package, rest = frame["filename"].rpartition("site-packages/")
            frame["filename"] = package + rest if package else os.path.basename(rest)
    with open(out, "wb") as file:
        pickle.dump(snapshot, file)
    leave(status)


os._exit = dump
runpy.run_path(script, run_name="__main__")
