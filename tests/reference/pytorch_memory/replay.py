"""PyTorch's caching allocator before 2.15, replayed at the addresses that a driver returned.

Of equal free blocks, these versions take the one at the lowest address. So the peaks depend on the driver's addresses.
"""

import bisect

MIB = 1 << 20


class Block:
    def __init__(self, address, size, is_small, before=None, after=None):
        self.address, self.size, self.is_small = address, size, is_small
        self.before, self.after, self.is_free = before, after, False


class Allocator:
    def __init__(self, segments):
        # Addresses in the order of the driver's calls.
        self.segments = iter(segments)
        self.free = {True: [], False: []}
        self.allocated = self.peak = 0

    def allocate(self, request):
        size = -(-max(request, 1) // 512) * 512
        is_small = size <= MIB
        free = self.free[is_small]
        at = bisect.bisect_left(free, size, key=lambda block: block.size)
        block = free.pop(at) if at < len(free) else self.segment(size, is_small)
        block.is_free = False
        rest = block.size - size
        if rest >= 512 if is_small else rest > MIB:
            block.size = size
            remainder = Block(block.address + size, rest, is_small, block, block.after)
            if block.after:
                block.after.before = remainder
            block.after = remainder
            self.list(remainder)
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def segment(self, size, is_small):
        if is_small:
            size = 2 * MIB
        elif size < 10 * MIB:
            size = 20 * MIB
        else:
            size = -(-size // (2 * MIB)) * 2 * MIB
        return Block(next(self.segments), size, is_small)

    def release(self, block):
        self.allocated -= block.size
        if block.before and block.before.is_free:
            self.free[block.is_small].remove(block.before)
            block = self.join(block.before, block)
        if block.after and block.after.is_free:
            self.free[block.is_small].remove(block.after)
            block = self.join(block, block.after)
        self.list(block)

    @staticmethod
    def join(first, second):
        first.size += second.size
        first.after = second.after
        if second.after:
            second.after.before = first
        return first

    def list(self, block):
        block.is_free = True
        bisect.insort(self.free[block.is_small], block, key=lambda block: (block.size, block.address))


def replay(events):
    """The peak of allocated bytes, and whether every request got the block at its real address.

    `events` are those of PyTorch's memory history: dictionaries with `action`, `addr` and `size`.
    """
    allocator = Allocator([event["addr"] for event in events if event["action"] == "segment_alloc"])
    live, as_real = {}, True
    for event in events:
        if event["action"] == "alloc":
            block = allocator.allocate(event["size"])
            as_real &= block.address == event["addr"]
            live[event["addr"]] = block
        elif event["action"] == "free_requested":
            allocator.release(live.pop(event["addr"]))
    return allocator.peak, as_real
