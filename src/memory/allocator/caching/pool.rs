//! Segments of memory, each divided into contiguous blocks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::allocator::Location;
use device::Buffer;
use ops::ValueId;

/// The address of a block: its segment, by order of creation, and its offset. Buffer ids have no order that a
/// prediction could reproduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// The blocks of one size class.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    segments: BTreeMap<u64, Segment>,
    by_buffer: HashMap<Buffer, u64>,
    /// By size, then by address: the first that is large enough is the best fit.
    free: BTreeSet<(u64, Address)>,
    /// Uncommitted blocks: addresses without memory.
    uncommitted: BTreeSet<Address>,
    /// Number of segments ever created.
    created: u64,
}

#[derive(Debug)]
struct Segment {
    buffer: Buffer,
    bytes: u64,
    /// By offset.
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) bytes: u64,
    state: BlockState,
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    HeldBy(ValueId),
    /// Free, with the pool's number of searches at the time of the free, or 0 if it was never used: its age for garbage
    /// collection.
    FreeSince(u64),
    /// Addresses without memory (PyTorch: unmapped).
    Uncommitted,
}

impl Block {
    pub(super) fn is_free(&self) -> bool {
        matches!(self.state, BlockState::FreeSince(_))
    }

    pub(super) fn is_uncommitted(&self) -> bool {
        self.state == BlockState::Uncommitted
    }

    /// Whether the two coalesce if they are adjacent.
    pub(super) fn coalesces_with(&self, other: &Block) -> bool {
        self.is_free() && other.is_free() || self.is_uncommitted() && other.is_uncommitted()
    }
}

impl BlockPool {
    /// The smallest free block of at least `bytes` bytes, and its size.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<(Address, u64)> {
        let least = Address { segment: 0, offset: 0 };
        self.free.range((bytes, least)..).next().map(|&(size, address)| (address, size))
    }

    /// The best fit with expandable segments, as in PyTorch: a block counts with the uncommitted addresses after it,
    /// and the block with the least total wins. So blocks that can grow are kept for requests that need that.
    pub(super) fn best_fit_expandable(&self, bytes: u64) -> Option<(Address, u64)> {
        let least = Address { segment: 0, offset: 0 };
        let mut fits = self.free.range((bytes, least)..).map(|&(size, address)| {
            let end = Address { offset: address.offset + size, ..address };
            let room = self.from(end).next().filter(|(_, block)| block.is_uncommitted());
            (size + room.map_or(0, |(_, block)| block.bytes), address, size)
        });
        let mut best = fits.next()?;
        for next in fits {
            if next.0 >= best.0 {
                break;
            }
            best = next;
        }
        Some((best.1, best.2))
    }

    /// The largest free block, and its size.
    pub(super) fn largest(&self) -> Option<(Address, u64)> {
        self.free.last().map(|&(size, address)| (address, size))
    }

    /// Bytes of all free blocks.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(size, _)| size).sum()
    }

    /// Adds a segment that is one free block.
    pub(super) fn add(&mut self, buffer: Buffer, bytes: u64) -> Address {
        self.add_segment(buffer, Block { bytes, state: BlockState::FreeSince(0) })
    }

    /// Adds a segment without memory.
    pub(super) fn add_uncommitted(&mut self, buffer: Buffer, bytes: u64) {
        self.add_segment(buffer, Block { bytes, state: BlockState::Uncommitted });
    }

    fn add_segment(&mut self, buffer: Buffer, block: Block) -> Address {
        let address = Address { segment: self.created, offset: 0 };
        self.created += 1;
        let segment = Segment { buffer, bytes: block.bytes, blocks: BTreeMap::new() };
        self.segments.insert(address.segment, segment);
        self.by_buffer.insert(buffer, address.segment);
        self.insert(address, block);
        address
    }

    /// Allocates the first `bytes` bytes of a free block to a storage; the rest stays free.
    pub(super) fn claim(&mut self, address: Address, bytes: u64, storage: ValueId) -> Location {
        let block = self.remove(address);
        if bytes < block.bytes {
            let rest = Address { offset: address.offset + bytes, ..address };
            self.insert(rest, Block { bytes: block.bytes - bytes, ..block });
        }
        self.insert(address, Block { bytes, state: BlockState::HeldBy(storage) });
        (self.segments[&address.segment].buffer, address.offset)
    }

    /// The size of a block in use.
    pub(super) fn block_bytes(&self, (buffer, offset): Location) -> u64 {
        self.segments[&self.by_buffer[&buffer]].blocks[&offset].bytes
    }

    /// Frees a block, and coalesces it with its free neighbours.
    pub(super) fn free(&mut self, (buffer, offset): Location, searches: u64) {
        let address = Address { segment: self.by_buffer[&buffer], offset };
        let Block { bytes, .. } = self.remove(address);
        self.insert_coalesced(address, Block { bytes, state: BlockState::FreeSince(searches) });
    }

    /// Inserts a block, coalesced with adjacent blocks in the same state. Returns its address and size.
    fn insert_coalesced(&mut self, Address { segment, offset }: Address, block: Block) -> (Address, u64) {
        let blocks = &self.segments[&segment].blocks;
        let after = blocks.get(&(offset + block.bytes)).map(|other| (offset + block.bytes, *other));
        let before = blocks.range(..offset).next_back().map(|(&first, other)| (first, *other));
        let (mut first, mut bytes) = (offset, block.bytes);
        for (offset, other) in
            [after, before].into_iter().flatten().filter(|(_, other)| other.coalesces_with(&block))
        {
            self.remove(Address { segment, offset });
            (first, bytes) = (first.min(offset), bytes + other.bytes);
        }
        let address = Address { segment, offset: first };
        self.insert(address, Block { bytes, ..block });
        (address, bytes)
    }

    /// Commits memory to the beginning of an uncommitted block. Returns the free block that contains it.
    pub(super) fn commit(&mut self, address: Address, bytes: u64) -> (Address, u64) {
        let block = self.remove(address);
        if bytes < block.bytes {
            let rest = Address { offset: address.offset + bytes, ..address };
            self.insert(rest, Block { bytes: block.bytes - bytes, ..block });
        }
        self.insert_coalesced(address, Block { bytes, state: BlockState::FreeSince(0) })
    }

    /// Decommits a part of a free block.
    pub(super) fn decommit(&mut self, address: Address, part: Range<u64>) {
        let block = self.remove(address);
        let end = address.offset + block.bytes;
        for rest in [address.offset..part.start, part.end..end].into_iter().filter(|rest| !rest.is_empty()) {
            let bytes = rest.end - rest.start;
            self.insert(Address { offset: rest.start, ..address }, Block { bytes, ..block });
        }
        let uncommitted = Block { bytes: part.end - part.start, state: BlockState::Uncommitted };
        self.insert_coalesced(Address { offset: part.start, ..address }, uncommitted);
    }

    /// The uncommitted blocks, by address.
    pub(super) fn uncommitted(&self) -> impl Iterator<Item = Address> + '_ {
        self.uncommitted.iter().copied()
    }

    /// The free blocks, by address.
    pub(super) fn free_blocks(&self) -> Vec<(Address, u64)> {
        let mut free: Vec<(Address, u64)> =
            self.free.iter().map(|&(bytes, address)| (address, bytes)).collect();
        free.sort_unstable();
        free
    }

    pub(super) fn buffer(&self, address: Address) -> Buffer {
        self.segments[&address.segment].buffer
    }

    /// The block before an address.
    pub(super) fn before(&self, address: Address) -> Option<(Address, Block)> {
        let before = self.segments[&address.segment].blocks.range(..address.offset).next_back();
        before.map(|(&offset, block)| (Address { offset, ..address }, *block))
    }

    pub(super) fn from(&self, address: Address) -> impl Iterator<Item = (Address, Block)> + '_ {
        let blocks = self.segments[&address.segment].blocks.range(address.offset..);
        blocks.map(move |(&offset, block)| (Address { offset, ..address }, *block))
    }

    /// Drops the segments without memory. Returns their buffers.
    pub(super) fn drop_uncommitted(&mut self) -> Vec<Buffer> {
        let is_whole = |address: &Address| self.segments[&address.segment].blocks.len() == 1;
        let whole: Vec<Address> = self.uncommitted().filter(is_whole).collect();
        whole.into_iter().map(|address| self.drop_segment(address).0).collect()
    }

    /// The segments that are entirely free, oldest first, with their sizes and since when they are free.
    pub(super) fn wholly_free(&self) -> Vec<(Address, u64, u64)> {
        let whole =
            self.segments.iter().filter_map(|(&number, segment)| match segment.blocks.get(&0)?.state {
                BlockState::FreeSince(since) if segment.blocks.len() == 1 => {
                    Some((Address { segment: number, offset: 0 }, segment.bytes, since))
                }
                _ => None,
            });
        whole.collect()
    }

    /// Drops a segment that is one block. Returns its buffer and size.
    pub(super) fn drop_segment(&mut self, address: Address) -> (Buffer, u64) {
        self.remove(address);
        let segment = self.segments.remove(&address.segment).expect("its block was in it");
        assert!(segment.blocks.is_empty(), "the segment had one block");
        self.by_buffer.remove(&segment.buffer);
        (segment.buffer, segment.bytes)
    }

    /// The state that later results depend on: the division of segments in order of creation, the holders of blocks,
    /// and, given `now`, for how many searches entirely free segments have been free.
    pub(super) fn state(&self, now: Option<u64>) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.segments.len() as u64).chain(self.segments.values().flat_map(move |segment| {
            let now = now.filter(|_| segment.blocks.len() == 1);
            let blocks = segment.blocks.values().flat_map(move |block| {
                let state = match block.state {
                    BlockState::HeldBy(storage) => [2, u64::from(storage.0)],
                    BlockState::FreeSince(since) => [1, now.map_or(0, |now| now - since)],
                    BlockState::Uncommitted => [0, 0],
                };
                std::iter::once(block.bytes).chain(state)
            });
            std::iter::once(segment.blocks.len() as u64).chain(blocks)
        }))
    }

    fn insert(&mut self, address: Address, block: Block) {
        self.segment_mut(address.segment).blocks.insert(address.offset, block);
        match block.state {
            BlockState::HeldBy(_) => {}
            BlockState::FreeSince(_) => drop(self.free.insert((block.bytes, address))),
            BlockState::Uncommitted => drop(self.uncommitted.insert(address)),
        }
    }

    fn remove(&mut self, address: Address) -> Block {
        let blocks = &mut self.segment_mut(address.segment).blocks;
        let block = blocks.remove(&address.offset).expect("every address in use is that of a block");
        self.free.remove(&(block.bytes, address));
        self.uncommitted.remove(&address);
        block
    }

    fn segment_mut(&mut self, number: u64) -> &mut Segment {
        self.segments.get_mut(&number).expect("a segment exists while it has blocks")
    }
}

#[cfg(test)]
impl BlockPool {
    /// By segment: its size, and its blocks with their offsets.
    pub(super) fn blocks(&self) -> Vec<(u64, Vec<(u64, Block)>)> {
        let blocks =
            |segment: &Segment| segment.blocks.iter().map(|(&offset, &block)| (offset, block)).collect();
        self.segments.values().map(|segment| (segment.bytes, blocks(segment))).collect()
    }
}

#[cfg(test)]
impl Block {
    pub(super) fn holder(&self) -> Option<ValueId> {
        if let BlockState::HeldBy(storage) = self.state { Some(storage) } else { None }
    }
}
