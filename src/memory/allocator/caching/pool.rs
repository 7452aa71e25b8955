//! Segments of memory, each divided into blocks without a gap.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::device::Buffer;
use crate::memory::allocator::Location;
use crate::ops::ValueId;

/// A block: its segment, by the order in which segments came, and the byte of it that it begins at. Buffers have no order
/// that a prediction could know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    segment: u64,
    offset: u64,
}

/// What requests of one class are served from.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    segments: BTreeMap<u64, Segment>,
    by_buffer: HashMap<Buffer, u64>,
    /// By size and then by place: the first that is large enough is the best fit.
    free: BTreeSet<(u64, Place)>,
    /// Segments that ever came.
    came: u64,
}

#[derive(Debug)]
struct Segment {
    buffer: Buffer,
    bytes: u64,
    /// By their first bytes.
    blocks: BTreeMap<u64, Block>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    held: Held,
}

/// Whom a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    By(ValueId),
    /// Nobody, since the pool was searched so many times.
    FreeSince(u64),
}

impl Block {
    fn is_free(&self) -> bool {
        matches!(self.held, Held::FreeSince(_))
    }
}

impl BlockPool {
    /// The smallest free block of at least so many bytes, and its size.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<(Place, u64)> {
        let least = Place { segment: 0, offset: 0 };
        self.free.range((bytes, least)..).next().map(|&(size, place)| (place, size))
    }

    /// The largest free block, and its size.
    pub(super) fn largest(&self) -> Option<(Place, u64)> {
        self.free.last().map(|&(size, place)| (place, size))
    }

    /// Bytes of all free blocks.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(size, _)| size).sum()
    }

    /// A segment that is one free block.
    pub(super) fn add(&mut self, buffer: Buffer, bytes: u64) -> Place {
        let place = Place { segment: self.came, offset: 0 };
        self.came += 1;
        let segment = Segment { buffer, bytes, blocks: BTreeMap::new() };
        self.segments.insert(place.segment, segment);
        self.by_buffer.insert(buffer, place.segment);
        self.insert(place, Block { bytes, held: Held::FreeSince(0) });
        place
    }

    /// Gives a storage so many bytes of a free block: the rest, if there is any, is another one.
    pub(super) fn claim(&mut self, place: Place, bytes: u64, storage: ValueId) -> Location {
        let block = self.remove(place);
        if bytes < block.bytes {
            let rest = Place { offset: place.offset + bytes, ..place };
            self.insert(rest, Block { bytes: block.bytes - bytes, ..block });
        }
        self.insert(place, Block { bytes, held: Held::By(storage) });
        (self.segments[&place.segment].buffer, place.offset)
    }

    /// Takes a block back, and makes it one with its neighbours that are free.
    pub(super) fn take_back(&mut self, (buffer, offset): Location, searches: u64) {
        let segment = self.by_buffer[&buffer];
        let blocks = &self.segments[&segment].blocks;
        let (mut first, mut bytes) = (offset, blocks[&offset].bytes);
        let after = blocks.get(&(offset + bytes)).map(|block| (offset + bytes, *block));
        let before = blocks.range(..offset).next_back().map(|(&first, block)| (first, *block));
        self.remove(Place { segment, offset });
        for (offset, block) in [after, before].into_iter().flatten().filter(|(_, block)| block.is_free()) {
            self.remove(Place { segment, offset });
            (first, bytes) = (first.min(offset), bytes + block.bytes);
        }
        let block = Block { bytes, held: Held::FreeSince(searches) };
        self.insert(Place { segment, offset: first }, block);
    }

    /// The segments of which every byte is free, with their sizes and since when they are, those that came first first.
    pub(super) fn wholly_free(&self) -> Vec<(Place, u64, u64)> {
        let whole =
            self.segments.iter().filter_map(|(&number, segment)| match segment.blocks.get(&0)?.held {
                Held::FreeSince(since) if segment.blocks.len() == 1 => {
                    Some((Place { segment: number, offset: 0 }, segment.bytes, since))
                }
                _ => None,
            });
        whole.collect()
    }

    /// Drops the segment of a block that is all of it. Returns its buffer and size.
    pub(super) fn drop_segment(&mut self, place: Place) -> (Buffer, u64) {
        self.remove(place);
        let segment = self.segments.remove(&place.segment).expect("its block was there");
        debug_assert!(segment.blocks.is_empty());
        self.by_buffer.remove(&segment.buffer);
        (segment.buffer, segment.bytes)
    }

    /// All that later answers depend on: how segments are divided, in the order in which they came, and who holds what.
    pub(super) fn state(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.segments.len() as u64).chain(self.segments.values().flat_map(|segment| {
            let blocks = segment.blocks.values().flat_map(|block| match block.held {
                Held::By(storage) => [block.bytes, 1 + u64::from(storage.0)],
                Held::FreeSince(_) => [block.bytes, 0],
            });
            std::iter::once(segment.blocks.len() as u64).chain(blocks)
        }))
    }

    fn insert(&mut self, place: Place, block: Block) {
        self.segment_mut(place.segment).blocks.insert(place.offset, block);
        if block.is_free() {
            self.free.insert((block.bytes, place));
        }
    }

    fn remove(&mut self, place: Place) -> Block {
        let blocks = &mut self.segment_mut(place.segment).blocks;
        let block = blocks.remove(&place.offset).expect("there is a block at every place that was given out");
        self.free.remove(&(block.bytes, place));
        block
    }

    fn segment_mut(&mut self, number: u64) -> &mut Segment {
        self.segments.get_mut(&number).expect("a segment stays while it has blocks")
    }
}

#[cfg(test)]
impl BlockPool {
    /// By segment: its size, and of each block its first byte, its size, and who holds it.
    pub(super) fn blocks(&self) -> Vec<(u64, Vec<(u64, u64, Option<ValueId>)>)> {
        let block = |(&offset, block): (&u64, &Block)| match block.held {
            Held::By(storage) => (offset, block.bytes, Some(storage)),
            Held::FreeSince(_) => (offset, block.bytes, None),
        };
        let segments = self.segments.values();
        segments.map(|segment| (segment.bytes, segment.blocks.iter().map(block).collect())).collect()
    }
}
