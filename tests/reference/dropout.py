"""A run's dropout masks: a 16-bit number per element from Philox4x32-10 (Salmon et al. 2011).

The element at row r and column c of a sample is kept if its number is below the threshold `kept`. Philox's key is the
sample's seed (two words), its counter (block, r, site, 0). Column c uses word (c % 32) // 8 of block
4 (c // 32) + (c % 8) // 2: its lower half if c is even, its upper half if c is odd.
"""

import torch

WORD = 0xFFFFFFFF


def drop(x, rate, site, seeds):
    """x [B, .., C] with dropped elements zero and the others scaled up. `seeds` i32[B, 2]: one per sample."""
    kept = min(max(round((1 - rate) * 65536), 1), 65535)
    rows, columns = x[0].numel() // x.shape[-1], x.shape[-1]
    is_kept = numbers(seeds, site, rows, columns) < kept
    return torch.where(is_kept.view(x.shape), x * (65536 / kept), torch.zeros_like(x))


def numbers(seeds, site, rows, columns):
    """The 16-bit numbers of all elements, i64[B, rows, columns]."""
    column = torch.arange(columns)
    blocks = philox(seeds.long() & WORD, torch.arange(-(-columns // 32) * 4), torch.arange(rows), site)
    block, word = column // 32 * 4 + column % 8 // 2, column % 32 // 8
    return blocks[:, :, block, word] >> 16 * (column % 2) & 0xFFFF


def philox(seeds, blocks, rows, site):
    """The four words of each block, i64[B, rows, blocks, 4]."""
    shape = (len(seeds), len(rows), len(blocks))
    counter = [blocks.expand(shape), rows[:, None].expand(shape), torch.full(shape, site), torch.zeros(shape).long()]
    key = [seeds[:, word, None, None].expand(shape) for word in (0, 1)]
    for _ in range(10):
        first, second = multiply(counter[0], 0xD2511F53), multiply(counter[2], 0xCD9E8D57)
        counter = [second[0] ^ counter[1] ^ key[0], second[1], first[0] ^ counter[3] ^ key[1], first[1]]
        key = [key[0] + 0x9E3779B9 & WORD, key[1] + 0xBB67AE85 & WORD]
    return torch.stack(counter, dim=-1)


def multiply(words, by):
    """Upper and lower word of a product, computed by half words: the product overflows an i64."""
    low, high = words & 0xFFFF, words >> 16
    middle = high * by + (low * by >> 16)
    return middle >> 16, (middle << 16 | low * by & 0xFFFF) & WORD
