"""What a run leaves out by chance: the numbers that elements have come from Philox4x32-10 (Salmon et al. 2011).

An element of row r and column c of a sample is kept if its number, of 16 bits, is below what `kept` says. The key is the sample's
seed, two words; the counter is (block, r, site, 0). Of column c it is block 4 (c // 32) + (c % 8) // 2, its word (c % 32) // 8,
and of that the lower half for even columns, the upper one for odd ones.
"""

import torch

WORD = 0xFFFFFFFF


def drop(x, rate, site, seeds):
    """x [B, .., C] with some elements zero, and the others larger for it. `seeds` i32[B, 2] are those of its samples."""
    kept = min(max(round((1 - rate) * 65536), 1), 65535)
    rows, columns = x[0].numel() // x.shape[-1], x.shape[-1]
    is_kept = numbers(seeds, site, rows, columns) < kept
    return torch.where(is_kept.view(x.shape), x * (65536 / kept), torch.zeros_like(x))


def numbers(seeds, site, rows, columns):
    """i64[B, rows, columns]"""
    column = torch.arange(columns)
    blocks = philox(seeds.long() & WORD, torch.arange(-(-columns // 32) * 4), torch.arange(rows), site)
    block, word = column // 32 * 4 + column % 8 // 2, column % 32 // 8
    return blocks[:, :, block, word] >> 16 * (column % 2) & 0xFFFF


def philox(seeds, blocks, rows, site):
    """The words of each block of each row of each sample, i64[B, rows, blocks, 4]."""
    shape = (len(seeds), len(rows), len(blocks))
    counter = [blocks.expand(shape), rows[:, None].expand(shape), torch.full(shape, site), torch.zeros(shape).long()]
    key = [seeds[:, word, None, None].expand(shape) for word in (0, 1)]
    for _ in range(10):
        first, second = multiply(counter[0], 0xD2511F53), multiply(counter[2], 0xCD9E8D57)
        counter = [second[0] ^ counter[1] ^ key[0], second[1], first[0] ^ counter[3] ^ key[1], first[1]]
        key = [key[0] + 0x9E3779B9 & WORD, key[1] + 0xBB67AE85 & WORD]
    return torch.stack(counter, dim=-1)


def multiply(words, by):
    """The upper and the lower word of a product: half a word at a time, as 64 bits with a sign do not hold it."""
    low, high = words & 0xFFFF, words >> 16
    middle = high * by + (low * by >> 16)
    return middle >> 16, (middle << 16 | low * by & 0xFFFF) & WORD
