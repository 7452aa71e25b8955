"""Records what PyTorch's caching allocator takes under nullcuda for random requests, with settings of PYTORCH_ALLOC_CONF.

    python3 record_allocator.py PYTHON > allocator.txt

Each line: settings, bytes of the card (0: as many as it needs), peak of allocated bytes, peak of reserved bytes, number of
retries, number of the event that was refused, and the events: `+bytes`, `-number` of the request that is released, and `e`
for torch.cuda.empty_cache().
"""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent

SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:33",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,4:4,16:1,>:8]",
    "expandable_segments:True,roundup_power2_divisions:2",
    "max_split_size_mb:64,roundup_power2_divisions:8",
]
MEMORY = [0, 300 << 20, 210 << 20]
MUCH = 24 << 30
SEQUENCES, EVENTS = 4, 80


def events(rng, most):
    """Requests of all sizes, and releases once much memory is in use."""
    live, made = {}, []
    for _ in range(EVENTS):
        chance = rng.random()
        if chance < 0.02:
            made.append("e")
        elif live and chance < (0.51 if sum(live.values()) > 0.7 * most else 0.36):
            number = rng.choice(list(live))
            del live[number]
            made.append(f"-{number}")
        else:
            low, high = rng.choice([(1, 1 << 20), (1 << 20, 12 << 20), (1 << 20, most // 3)])
            bytes = int(low * (high / low) ** rng.random())
            if rng.random() < 0.4:
                bytes = max(1, bytes >> 20 << 20)
            number = sum(event[0] == "+" for event in made)
            live[number] = bytes
            made.append(f"+{bytes}")
    return made


def record(settings, memory):
    import torch

    torch.cuda.init()
    allocate, release = (getattr(torch._C, f"_cuda_cudaCachingAllocator_raw_{name}") for name in ["alloc", "delete"])
    for number in range(SEQUENCES):
        made = events(random.Random(f"{settings} {memory} {number}"), memory or 400 << 20)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        blocks, refused = [], ""
        for index, event in enumerate(made):
            if event == "e":
                torch.cuda.empty_cache()
            elif event[0] == "-":
                release(blocks[int(event[1:])])
                blocks[int(event[1:])] = None
            else:
                try:
                    blocks.append(allocate(int(event[1:]), 0))
                except torch.OutOfMemoryError:
                    refused = index
                    break
        stats = torch.cuda.memory_stats()
        figures = ["allocated_bytes.all.peak", "reserved_bytes.all.peak", "num_alloc_retries"]
        print(settings, memory, *(stats[figure] for figure in figures), refused, " ".join(made), sep="|", flush=True)
        for block in blocks:
            if block is not None:
                release(block)


def main():
    if len(sys.argv) == 4:
        return record(sys.argv[2], int(sys.argv[3]))
    python = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["bash", HERE / "nullcuda/build.sh", python, folder], check=True, stdout=sys.stderr)
        for settings in SETTINGS:
            for memory in MEMORY:
                command = ["bash", HERE / "nullcuda/run.sh", python, folder, __file__, python, settings, str(memory)]
                card = {"NULLCUDA_DEVICE": "rtx4090", "NULLCUDA_MEMORY": str(memory or MUCH)}
                environment = os.environ | card | {"PYTORCH_ALLOC_CONF": settings}
                subprocess.run(command, check=True, env=environment)


main()
