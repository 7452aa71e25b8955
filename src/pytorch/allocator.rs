//! PyTorch's caching allocator (`CUDACachingAllocator`) on one stream.
//!
//! A request is rounded up to 512 bytes. It takes the first free block that is large enough, in the order of size, age
//! of the segment and address; if there is none, the driver is asked for a segment. The remainder of a block becomes a
//! free block if it is at least 512 bytes (small pool) or more than 1 MiB (large pool); otherwise it counts as
//! allocated. A freed block merges with its free neighbours.
//!
//! Source: the behaviour of PyTorch 2.15, recorded block by block.

const MIB: u64 = 1 << 20;

/// The granularity of blocks.
const ROUND: u64 = 512;

/// Requests up to this size come from the small pool.
const SMALL: u64 = MIB;

/// The size of a small pool's segment.
const SMALL_SEGMENT: u64 = 2 * MIB;

/// Requests below `LARGE_SEGMENT_BELOW` share segments of `LARGE_SEGMENT`; others get a segment of their own size.
const LARGE_SEGMENT: u64 = 20 * MIB;
const LARGE_SEGMENT_BELOW: u64 = 10 * MIB;

/// Segments are rounded up to this size.
const SEGMENT_ROUND: u64 = 2 * MIB;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    Small,
    Large,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    offset: u64,
    segment: u32,
    size: Size,
    free: bool,
    before: Option<u32>,
    after: Option<u32>,
}

/// Allocated and reserved bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of blocks in use, undivided remainders included: `torch.cuda.memory_allocated()`.
    pub allocated: u64,
    /// Bytes of segments: `torch.cuda.memory_reserved()`.
    pub reserved: u64,
}

impl Usage {
    pub(crate) fn raise(&mut self, to: Usage) {
        self.allocated = self.allocated.max(to.allocated);
        self.reserved = self.reserved.max(to.reserved);
    }
}

/// The driver refused a segment, and returning all cached segments did not help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {short} bytes short")]
pub struct OutOfMemory {
    /// Bytes of the request.
    pub request: u64,
    /// Bytes beyond the limit.
    pub short: u64,
}

#[derive(Debug)]
pub(crate) struct Allocator {
    blocks: Vec<Block>,
    /// Indices of blocks that no longer exist.
    unused: Vec<u32>,
    /// The free blocks of both pools in the order of the search, see `search_key`.
    free: [Vec<u128>; 2],
    segments: u32,
    pub(crate) usage: Usage,
    limit: Option<u64>,
    /// How often cached segments were returned to satisfy a request.
    pub(crate) retries: u32,
}

impl Allocator {
    pub(crate) fn new(limit: Option<u64>) -> Allocator {
        Allocator {
            blocks: Vec::new(),
            unused: Vec::new(),
            free: [Vec::new(), Vec::new()],
            segments: 0,
            usage: Usage::default(),
            limit,
            retries: 0,
        }
    }

    fn block(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    fn add(&mut self, block: Block) -> u32 {
        match self.unused.pop() {
            Some(index) => {
                *self.block(index) = block;
                index
            }
            None => {
                self.blocks.push(block);
                self.blocks.len() as u32 - 1
            }
        }
    }

    /// A block's rank in the search: its size, the age of its segment, its address; then its index. One number, because
    /// most of a replay's time goes into comparing it.
    fn search_key(&self, index: u32) -> u128 {
        let Block { bytes, segment, offset, .. } = self.blocks[index as usize];
        let offset = u32::try_from(offset / ROUND).unwrap_or(u32::MAX);
        u128::from(bytes / ROUND) << 88
            | u128::from(segment) << 64
            | u128::from(offset) << 32
            | u128::from(index)
    }

    fn set_free(&mut self, index: u32, free: bool) {
        let key = self.search_key(index);
        let Block { size, .. } = self.blocks[index as usize];
        let blocks = &mut self.free[size as usize];
        match (blocks.binary_search(&key), free) {
            (Err(at), true) => blocks.insert(at, key),
            (Ok(at), false) => drop(blocks.remove(at)),
            (Ok(_), true) | (Err(_), false) => unreachable!("a block is free or not"),
        }
        self.block(index).free = free;
    }

    /// The index of the block for a request.
    pub(crate) fn allocate(&mut self, request: u64) -> Result<u32, OutOfMemory> {
        let bytes = request.max(1).next_multiple_of(ROUND);
        let size = if bytes <= SMALL { Size::Small } else { Size::Large };
        let blocks = &mut self.free[size as usize];
        let smallest = u128::from(bytes / ROUND) << 88;
        let at = blocks.partition_point(|&key| key < smallest);
        let index = if at < blocks.len() {
            let index = blocks.remove(at) as u32;
            self.block(index).free = false;
            index
        } else {
            self.segment(bytes, size)?
        };
        let Block { bytes: whole, offset, segment, after, .. } = self.blocks[index as usize];
        let rest = whole - bytes;
        let divides = match size {
            Size::Small => rest >= ROUND,
            Size::Large => rest > SMALL,
        };
        if divides {
            let before = Some(index);
            let rest =
                Block { bytes: rest, offset: offset + bytes, segment, size, free: false, before, after };
            let rest = self.add(rest);
            if let Some(after) = after {
                self.block(after).before = Some(rest);
            }
            self.block(index).after = Some(rest);
            self.block(index).bytes = bytes;
            self.set_free(rest, true);
        }
        self.usage.allocated += self.blocks[index as usize].bytes;
        Ok(index)
    }

    /// Requests a segment from the driver; if that fails, returns the cached ones and tries again.
    fn segment(&mut self, bytes: u64, size: Size) -> Result<u32, OutOfMemory> {
        let whole = match size {
            Size::Small => SMALL_SEGMENT,
            Size::Large if bytes < LARGE_SEGMENT_BELOW => LARGE_SEGMENT,
            Size::Large => bytes.next_multiple_of(SEGMENT_ROUND),
        };
        let fits = |usage: Usage| self.limit.is_none_or(|limit| usage.reserved + whole <= limit);
        if !fits(self.usage) {
            self.retries += 1;
            self.empty_cache();
            let limit = self.limit.unwrap_or(u64::MAX);
            if self.usage.reserved + whole > limit {
                return Err(OutOfMemory { request: bytes, short: self.usage.reserved + whole - limit });
            }
        }
        self.usage.reserved += whole;
        self.segments += 1;
        let segment = self.segments;
        Ok(self.add(Block { bytes: whole, offset: 0, segment, size, free: false, before: None, after: None }))
    }

    pub(crate) fn free(&mut self, index: u32) {
        self.usage.allocated -= self.blocks[index as usize].bytes;
        let Block { before, after, .. } = self.blocks[index as usize];
        if let Some(before) = before.filter(|&other| self.blocks[other as usize].free) {
            self.set_free(before, false);
            let Block { bytes, offset, before: outer, .. } = self.blocks[before as usize];
            let block = self.block(index);
            (block.offset, block.bytes, block.before) = (offset, block.bytes + bytes, outer);
            if let Some(outer) = outer {
                self.block(outer).after = Some(index);
            }
            self.unused.push(before);
        }
        if let Some(after) = after.filter(|&other| self.blocks[other as usize].free) {
            self.set_free(after, false);
            let Block { bytes, after: outer, .. } = self.blocks[after as usize];
            let block = self.block(index);
            (block.bytes, block.after) = (block.bytes + bytes, outer);
            if let Some(outer) = outer {
                self.block(outer).before = Some(index);
            }
            self.unused.push(after);
        }
        self.set_free(index, true);
    }

    /// Returns segments without a block in use to the driver.
    pub(crate) fn empty_cache(&mut self) {
        let free = self.free.iter().flatten().map(|&key| key as u32);
        let whole: Vec<u32> = free.filter(|&index| self.is_whole(index)).collect();
        for index in whole {
            self.set_free(index, false);
            self.usage.reserved -= self.blocks[index as usize].bytes;
            self.unused.push(index);
        }
    }

    fn is_whole(&self, index: u32) -> bool {
        let Block { before, after, .. } = self.blocks[index as usize];
        before.is_none() && after.is_none()
    }
}

#[cfg(test)]
mod tests;
