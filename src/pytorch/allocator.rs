//! PyTorch's caching allocator (`CUDACachingAllocator`). Each stream has free blocks of its own.
//!
//! A request is rounded up to 512 bytes. It takes the first free block that is large enough, in the order of size, age
//! of the segment and address; if there is none, the driver is asked for a segment. The remainder of a block becomes a
//! free block if it is at least 512 bytes (small pool) or more than 1 MiB (large pool); otherwise it counts as
//! allocated. A freed block merges with its free neighbours. Settings of `PYTORCH_ALLOC_CONF` change these rules.
//!
//! Source: the behaviour of PyTorch 2.15, recorded block by block, and `c10/cuda/CUDACachingAllocator.cpp`.

mod expandable;
mod segments;

use std::collections::BTreeMap;

pub(crate) use expandable::ADDRESSES;
pub(crate) use segments::{CurrentBlock, DriverCall, Place};

use crate::sequence::Stream;
use spec::AllocConf;

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

impl Size {
    /// The pool of requests, rounded to this many bytes.
    fn of(bytes: u64) -> Size {
        if bytes <= SMALL { Size::Small } else { Size::Large }
    }
}

/// The blocks that serve the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pool {
    size: Size,
    stream: Stream,
}

impl Pool {
    const COUNT: usize = 2 * Stream::COUNT;

    /// The pool of requests of a stream, rounded to this many bytes.
    fn of(bytes: u64, stream: Stream) -> Pool {
        Pool { size: Size::of(bytes), stream }
    }

    fn index(self) -> usize {
        2 * self.stream as usize + self.size as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Used,
    Free,
    /// Addresses of an expandable segment without memory.
    Unmapped,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    offset: u64,
    segment: u32,
    pool: Pool,
    state: State,
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
    /// The larger of each.
    pub(crate) fn or_higher(self, other: Usage) -> Usage {
        Usage { allocated: self.allocated.max(other.allocated), reserved: self.reserved.max(other.reserved) }
    }

    pub(crate) fn raise(&mut self, to: Usage) {
        *self = self.or_higher(to);
    }
}

/// What determines the results of later calls that release only the requests they make.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    usage: Usage,
    retries: u32,
    free: Vec<Place>,
    unmapped: Vec<Place>,
}

/// The memory of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardMemory {
    /// Bytes for PyTorch's allocator.
    pub available: u64,
    /// Bytes of the card.
    pub total: u64,
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
    conf: AllocConf,
    blocks: Vec<Block>,
    /// Indices of blocks that no longer exist.
    unused: Vec<u32>,
    /// The free blocks of each pool in the order of the search, see `search_key`.
    free: [Vec<u128>; Pool::COUNT],
    /// The unmapped blocks of each pool's expandable segments, by segment and offset.
    unmapped: [BTreeMap<(u32, u64), u32>; Pool::COUNT],
    segments: u32,
    pub(crate) usage: Usage,
    card: Option<CardMemory>,
    /// How often cached segments were returned to satisfy a request.
    pub(crate) retries: u32,
    /// The calls of the driver since the last time they were taken, if they are recorded.
    pub(crate) driver_calls: Option<Vec<DriverCall>>,
}

impl Allocator {
    pub(crate) fn new(card: Option<CardMemory>, conf: AllocConf) -> Allocator {
        Allocator {
            conf,
            blocks: Vec::new(),
            unused: Vec::new(),
            free: Default::default(),
            unmapped: Default::default(),
            segments: 0,
            usage: Usage::default(),
            card,
            retries: 0,
            driver_calls: None,
        }
    }

    fn block(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    pub(crate) fn place(&self, index: u32) -> Place {
        let Block { bytes, offset, segment, .. } = self.blocks[index as usize];
        Place { segment, offset, bytes }
    }

    pub(crate) fn layout(&self) -> Layout {
        let free = self.free.iter().flatten().map(|&key| self.place(key as u32)).collect();
        let unmapped =
            self.unmapped.iter().flat_map(BTreeMap::values).map(|&index| self.place(index)).collect();
        Layout { usage: self.usage, retries: self.retries, free, unmapped }
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
        least_key(bytes) | u128::from(segment) << 64 | u128::from(offset) << 32 | u128::from(index)
    }

    /// Changes the state of a block, and the lists by state with it.
    fn set_state(&mut self, index: u32, state: State) {
        let Block { segment, offset, pool, state: before, .. } = self.blocks[index as usize];
        let key = self.search_key(index);
        let free = &mut self.free[pool.index()];
        match before {
            State::Used => {}
            State::Free => {
                let at = free.binary_search(&key).expect("a free block is listed");
                free.remove(at);
            }
            State::Unmapped => drop(self.unmapped[pool.index()].remove(&(segment, offset))),
        }
        match state {
            State::Used => {}
            State::Free => {
                let at = free.partition_point(|other| *other < key);
                free.insert(at, key);
            }
            State::Unmapped => drop(self.unmapped[pool.index()].insert((segment, offset), index)),
        }
        self.block(index).state = state;
    }

    /// Frees a block and lists it instead of another one, which is no longer a block or in use.
    fn replace_free(&mut self, at: usize, index: u32) {
        let key = self.search_key(index);
        self.block(index).state = State::Free;
        let free = &mut self.free[self.blocks[index as usize].pool.index()];
        let to = if key < free[at] {
            let to = free[..at].partition_point(|other| *other < key);
            free.copy_within(to..at, to + 1);
            to
        } else {
            let to = at + free[at + 1..].partition_point(|other| *other < key);
            free.copy_within(at + 1..to + 1, at);
            to
        };
        free[to] = key;
    }

    /// The index of the block for a request of a stream.
    pub(crate) fn allocate(&mut self, request: u64, stream: Stream) -> Result<u32, OutOfMemory> {
        let bytes = self.rounded(request);
        let pool = Pool::of(bytes, stream);
        let found = self.find(bytes, pool);
        let index = match found {
            Some(at) => self.free[pool.index()][at] as u32,
            None => {
                let index = self.obtain(bytes, pool)?;
                self.set_state(index, State::Used);
                index
            }
        };
        self.block(index).state = State::Used;
        let rest = self.blocks[index as usize].bytes - bytes;
        let rest = self.divides(bytes, pool.size, rest).then(|| self.split(index, bytes));
        match (found, rest) {
            (Some(at), Some(rest)) => self.replace_free(at, rest),
            (Some(at), None) => drop(self.free[pool.index()].remove(at)),
            (None, Some(rest)) => self.set_state(rest, State::Free),
            (None, None) => {}
        }
        self.usage.allocated += self.blocks[index as usize].bytes;
        Ok(index)
    }

    /// Lends the free block of a request that is released at once, if there is one: its index, and the usage meanwhile.
    /// The release would restore the list of free blocks, so nothing changes.
    pub(crate) fn lend(&self, request: u64, stream: Stream) -> Option<(u32, Usage)> {
        let bytes = self.rounded(request);
        let pool = Pool::of(bytes, stream);
        let index = self.free[pool.index()][self.find(bytes, pool)?] as u32;
        let whole = self.blocks[index as usize].bytes;
        let taken = if self.divides(bytes, pool.size, whole - bytes) { bytes } else { whole };
        Some((index, Usage { allocated: self.usage.allocated + taken, ..self.usage }))
    }

    /// The bytes of a request's block: a multiple of 512; with `roundup_power2_divisions`, the next of these equal parts
    /// between two powers of two.
    fn rounded(&self, request: u64) -> u64 {
        let divisions = self.conf.divisions(request);
        if divisions > 1 && request > ROUND * divisions && !request.is_power_of_two() {
            let floor = 1 << request.ilog2();
            return request.next_multiple_of(floor / divisions);
        }
        request.max(1).next_multiple_of(ROUND)
    }

    /// The position of the free block that serves a request.
    fn find(&self, bytes: u64, pool: Pool) -> Option<usize> {
        let blocks = &self.free[pool.index()];
        let smallest = least_key(bytes);
        let mut at = blocks.partition_point(|&key| key < smallest);
        let mut found = *blocks.get(at)?;
        while self.conf.expandable_segments
            && let Some(&next) = blocks.get(at + 1)
            && self.bytes_when_grown(next as u32) < self.bytes_when_grown(found as u32)
        {
            (at, found) = (at + 1, next);
        }
        let is_refused = self.conf.max_split_size.is_some_and(|most| match bytes >= most {
            true => found >= least_key(bytes + LARGE_SEGMENT),
            false => found >= least_key(most),
        });
        (!is_refused).then_some(at)
    }

    /// Whether the remainder of a block becomes a block of its own.
    fn divides(&self, bytes: u64, size: Size, rest: u64) -> bool {
        match size {
            Size::Large if !self.conf.expandable_segments => {
                rest > SMALL && self.conf.max_split_size.is_none_or(|most| bytes < most)
            }
            Size::Large | Size::Small => rest >= ROUND,
        }
    }

    /// Divides a block; the second part is returned, in use.
    fn split(&mut self, index: u32, bytes: u64) -> u32 {
        let Block { bytes: whole, offset, segment, pool, after, .. } = self.blocks[index as usize];
        let rest = Block {
            bytes: whole - bytes,
            offset: offset + bytes,
            segment,
            pool,
            state: State::Used,
            before: Some(index),
            after,
        };
        let rest = self.add(rest);
        if let Some(after) = after {
            self.block(after).before = Some(rest);
        }
        let block = self.block(index);
        (block.bytes, block.after) = (bytes, Some(rest));
        rest
    }

    /// Obtains a block from the driver; if that fails, returns cached ones and tries again.
    fn obtain(&mut self, bytes: u64, pool: Pool) -> Result<u32, OutOfMemory> {
        let mut result = self.request(bytes, pool);
        if result.is_err() && self.release_oversize(bytes, pool) {
            result = self.request(bytes, pool);
        }
        if result.is_err() {
            self.retries += 1;
            self.empty_cache();
            result = self.request(bytes, pool);
        }
        result.map_err(|short| OutOfMemory { request: bytes, short })
    }

    /// Requests memory from the driver: a segment, or pages of the expandable one.
    ///
    /// # Errors
    /// Bytes beyond the limit.
    fn request(&mut self, bytes: u64, pool: Pool) -> Result<u32, u64> {
        if self.conf.expandable_segments {
            return self.expand(bytes, pool);
        }
        let whole = match pool.size {
            Size::Small => SMALL_SEGMENT,
            Size::Large if bytes < LARGE_SEGMENT_BELOW => LARGE_SEGMENT,
            Size::Large => bytes.next_multiple_of(SEGMENT_ROUND),
        };
        self.reserve(whole)?;
        self.segments += 1;
        let segment = self.segments;
        self.record_driver_call(Place { segment, offset: 0, bytes: whole }, pool, true);
        let state = State::Used;
        Ok(self.add(Block { bytes: whole, offset: 0, segment, pool, state, before: None, after: None }))
    }

    fn reserve(&mut self, bytes: u64) -> Result<(), u64> {
        let reserved = self.usage.reserved + bytes;
        match self.card {
            Some(CardMemory { available, .. }) if reserved > available => Err(reserved - available),
            _ => {
                self.usage.reserved = reserved;
                Ok(())
            }
        }
    }

    pub(crate) fn free(&mut self, index: u32) {
        self.usage.allocated -= self.blocks[index as usize].bytes;
        self.merge(index, State::Free);
    }

    /// Gives a block in use this state, and merges it with its neighbours in the same state.
    fn merge(&mut self, index: u32, state: State) {
        let Block { before, after, pool, .. } = self.blocks[index as usize];
        let [before, after] =
            [before, after].map(|other| other.filter(|&other| self.blocks[other as usize].state == state));
        // The list of free blocks gets the whole in place of one neighbour.
        let replaced = after.or(before).filter(|_| state == State::Free);
        let replaced_key = replaced.map(|other| self.search_key(other));
        if let Some(before) = before {
            if replaced != Some(before) {
                self.set_state(before, State::Used);
            }
            let Block { bytes, offset, before: outer, .. } = self.blocks[before as usize];
            let block = self.block(index);
            (block.offset, block.bytes, block.before) = (offset, block.bytes + bytes, outer);
            if let Some(outer) = outer {
                self.block(outer).after = Some(index);
            }
            self.unused.push(before);
        }
        if let Some(after) = after {
            if replaced != Some(after) {
                self.set_state(after, State::Used);
            }
            let Block { bytes, after: outer, .. } = self.blocks[after as usize];
            let block = self.block(index);
            (block.bytes, block.after) = (block.bytes + bytes, outer);
            if let Some(outer) = outer {
                self.block(outer).before = Some(index);
            }
            self.unused.push(after);
        }
        match replaced_key {
            Some(key) => {
                let at = self.free[pool.index()].binary_search(&key).expect("a free block is listed");
                self.replace_free(at, index);
            }
            None => self.set_state(index, state),
        }
    }

    /// With `max_split_size_mb`, before the cache is emptied: returns the smallest oversize block that is large enough
    /// for a request; without one, the largest oversize blocks until their sum is. Whether the sum is large enough.
    fn release_oversize(&mut self, bytes: u64, pool: Pool) -> bool {
        let Some(oversize) = self.conf.max_split_size else { return false };
        let needed = bytes.max(oversize);
        let blocks = &self.free[pool.index()];
        let at = blocks.partition_point(|&key| key < least_key(needed));
        if let Some(&key) = blocks.get(at) {
            self.release(key as u32);
            return true;
        }
        let mut released = 0;
        while released < needed
            && let Some(&key) = self.free[pool.index()].last()
            && key >= least_key(oversize)
        {
            let index = key as u32;
            released += self.blocks[index as usize].bytes;
            self.release(index);
        }
        released >= needed
    }

    /// Returns memory without a block in use to the driver.
    pub(crate) fn empty_cache(&mut self) {
        let free: Vec<u32> = self.free.iter().flatten().map(|&key| key as u32).collect();
        for index in free {
            if self.conf.expandable_segments {
                self.unmap(index);
            } else if self.is_whole(index) {
                self.release(index);
            }
        }
    }

    /// Returns a segment that is one free block to the driver.
    fn release(&mut self, index: u32) {
        self.set_state(index, State::Used);
        self.record_driver_call(self.place(index), self.blocks[index as usize].pool, false);
        self.usage.reserved -= self.blocks[index as usize].bytes;
        self.unused.push(index);
    }

    fn is_whole(&self, index: u32) -> bool {
        let Block { before, after, .. } = self.blocks[index as usize];
        before.is_none() && after.is_none()
    }
}

/// The least rank of a block of this size. Sizes are multiples of `ROUND`.
fn least_key(bytes: u64) -> u128 {
    u128::from(bytes / ROUND) << 88
}

#[cfg(test)]
mod tests;
