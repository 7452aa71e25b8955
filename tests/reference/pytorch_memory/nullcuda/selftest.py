"""Checks nullcuda by figures that were worked out by hand: bash run.sh PYTHON FOLDER selftest.py, on each NULLCUDA_DEVICE."""

import os

import torch

MIB = 1 << 20
# Bytes of cuBLAS's workspace; a real A100 printed 8519680 (PyTorch's issue 95668).
SMALL_WORKSPACE, HOPPER_WORKSPACE = 8519680, 32 * MIB
# Compute capability, multiprocessors and cuBLAS's workspace.
CARDS = {
    "a100": ((8, 0), 108, SMALL_WORKSPACE),
    "h100": ((9, 0), 132, HOPPER_WORKSPACE),
    "b200": ((10, 0), 148, HOPPER_WORKSPACE),
    "rtx4090": ((8, 9), 128, SMALL_WORKSPACE),
    "rtx3090": ((8, 6), 82, SMALL_WORKSPACE),
    "t4": ((7, 5), 40, SMALL_WORKSPACE),
    # With PyTorch 2.6.
    "v100": ((7, 0), 80, SMALL_WORKSPACE),
    "p100": ((6, 0), 56, SMALL_WORKSPACE),
}


def expect(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"


def expect_memory(what, allocated, reserved):
    expect(what, (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (allocated, reserved))


def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def check_properties(capability, multiprocessors):
    expect("capability", torch.cuda.get_device_capability(), capability)
    expect("multiprocessors", torch.cuda.get_device_properties(0).multi_processor_count, multiprocessors)


def check_allocator():
    expect_memory("start", 0, 0)
    small = tensor(1)
    expect_memory("a small segment", 512, 2 * MIB)
    large = tensor(3 * MIB)
    expect_memory("a shared large segment", 512 + 3 * MIB, 22 * MIB)
    own = tensor(11 * MIB)
    # The segment has 17 MiB left: 11 MiB are cut off.
    expect_memory("the rest of the segment", 512 + 14 * MIB, 22 * MIB)
    del own
    own = tensor(16 * MIB)
    # 1 MiB is left, which is too little to be cut off.
    expect_memory("an undivided block", 512 + 20 * MIB, 22 * MIB)
    del small, large, own
    expect_memory("released", 0, 22 * MIB)
    torch.cuda.empty_cache()
    expect_memory("empty cache", 0, 0)


def check_workspace(workspace):
    a = torch.ones(128, 128, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    product = a @ a
    expect("peak of a matmul", torch.cuda.max_memory_allocated(), 2 * 4 * 128 * 128 + workspace)
    expect("device values are zeros on the host", product.sum().item(), 0.0)


def check_limit():
    """With half of the memory taken, more than half does not fit."""
    available, total = torch.cuda.mem_get_info()
    half = tensor(total // 2)
    expect("available", available - torch.cuda.mem_get_info()[0], half.numel() + -half.numel() % (2 * MIB))
    try:
        tensor(total // 2 + 4 * MIB)
    except torch.cuda.OutOfMemoryError:
        return
    raise AssertionError("the card ran out of memory without an error")


capability, multiprocessors, workspace = CARDS[os.environ["NULLCUDA_DEVICE"]]
check_properties(capability, multiprocessors)
check_allocator()
check_workspace(workspace)
check_limit()
print(os.environ["NULLCUDA_DEVICE"], "ok", flush=True)
os._exit(0)  # Without a card, autograd's threads do not always end.
