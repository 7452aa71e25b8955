//! Segments of memory, each divided into blocks without a gap.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use crate::allocator::Location;
use device::Buffer;
use ops::ValueId;

/// A block: its segment, by the order in which segments came, and the byte of it that it begins at. Buffers have no order
/// that a prediction could know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u64,
}

/// What requests of one class are served from.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    segments: BTreeMap<u64, Segment>,
    by_buffer: HashMap<Buffer, u64>,
    /// By size and then by place: the first that is large enough is the best fit.
    free: BTreeSet<(u64, Place)>,
    /// Addresses with no memory behind them.
    absent: BTreeSet<Place>,
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
pub(super) struct Block {
    pub(super) bytes: u64,
    held: Held,
}

/// Whom a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    By(ValueId),
    /// Nobody, since the pool was searched so many times.
    FreeSince(u64),
    /// There is no memory.
    Absent,
}

impl Block {
    pub(super) fn is_free(&self) -> bool {
        matches!(self.held, Held::FreeSince(_))
    }

    pub(super) fn is_absent(&self) -> bool {
        self.held == Held::Absent
    }

    /// Whether the two are one where they lie side by side.
    pub(super) fn joins(&self, other: &Block) -> bool {
        self.is_free() && other.is_free() || self.is_absent() && other.is_absent()
    }
}

impl BlockPool {
    /// The smallest free block of at least so many bytes, and its size.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<(Place, u64)> {
        let least = Place { segment: 0, offset: 0 };
        self.free.range((bytes, least)..).next().map(|&(size, place)| (place, size))
    }

    /// The same where segments grow, as PyTorch has it: a block counts with the addresses behind it that have no memory, and
    /// larger ones are tried for as long as they count for less. What could grow is so kept for what needs that.
    pub(super) fn best_fit_but_for_growth(&self, bytes: u64) -> Option<(Place, u64)> {
        let least = Place { segment: 0, offset: 0 };
        let mut fits = self.free.range((bytes, least)..).map(|&(size, place)| {
            let end = Place { offset: place.offset + size, ..place };
            let room = self.from(end).next().filter(|(_, block)| block.is_absent());
            (size + room.map_or(0, |(_, block)| block.bytes), place, size)
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
    pub(super) fn largest(&self) -> Option<(Place, u64)> {
        self.free.last().map(|&(size, place)| (place, size))
    }

    /// Bytes of all free blocks.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(size, _)| size).sum()
    }

    /// A segment that is one free block.
    pub(super) fn add(&mut self, buffer: Buffer, bytes: u64) -> Place {
        self.add_segment(buffer, Block { bytes, held: Held::FreeSince(0) })
    }

    /// A segment of which nothing is there yet.
    pub(super) fn add_absent(&mut self, buffer: Buffer, bytes: u64) {
        self.add_segment(buffer, Block { bytes, held: Held::Absent });
    }

    fn add_segment(&mut self, buffer: Buffer, block: Block) -> Place {
        let place = Place { segment: self.came, offset: 0 };
        self.came += 1;
        let segment = Segment { buffer, bytes: block.bytes, blocks: BTreeMap::new() };
        self.segments.insert(place.segment, segment);
        self.by_buffer.insert(buffer, place.segment);
        self.insert(place, block);
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
        let place = Place { segment: self.by_buffer[&buffer], offset };
        let Block { bytes, .. } = self.remove(place);
        self.join(place, Block { bytes, held: Held::FreeSince(searches) });
    }

    /// Puts a block where none is, as one with its neighbours that are like it. Returns where that begins, and its size.
    fn join(&mut self, Place { segment, offset }: Place, block: Block) -> (Place, u64) {
        let blocks = &self.segments[&segment].blocks;
        let after = blocks.get(&(offset + block.bytes)).map(|other| (offset + block.bytes, *other));
        let before = blocks.range(..offset).next_back().map(|(&first, other)| (first, *other));
        let (mut first, mut bytes) = (offset, block.bytes);
        for (offset, other) in [after, before].into_iter().flatten().filter(|(_, other)| other.joins(&block))
        {
            self.remove(Place { segment, offset });
            (first, bytes) = (first.min(offset), bytes + other.bytes);
        }
        let place = Place { segment, offset: first };
        self.insert(place, Block { bytes, ..block });
        (place, bytes)
    }

    /// Puts memory behind a part of a block that has none, from its beginning on. Returns the free block that it is part of.
    pub(super) fn commit(&mut self, place: Place, bytes: u64) -> (Place, u64) {
        let block = self.remove(place);
        if bytes < block.bytes {
            let rest = Place { offset: place.offset + bytes, ..place };
            self.insert(rest, Block { bytes: block.bytes - bytes, ..block });
        }
        self.join(place, Block { bytes, held: Held::FreeSince(0) })
    }

    /// Takes the memory from behind a part of a free block.
    pub(super) fn decommit(&mut self, place: Place, part: Range<u64>) {
        let block = self.remove(place);
        let end = place.offset + block.bytes;
        for rest in [place.offset..part.start, part.end..end].into_iter().filter(|rest| !rest.is_empty()) {
            let bytes = rest.end - rest.start;
            self.insert(Place { offset: rest.start, ..place }, Block { bytes, ..block });
        }
        let absent = Block { bytes: part.end - part.start, held: Held::Absent };
        self.join(Place { offset: part.start, ..place }, absent);
    }

    /// The blocks that have no memory behind them, by their places.
    pub(super) fn absent(&self) -> impl Iterator<Item = Place> + '_ {
        self.absent.iter().copied()
    }

    /// The free blocks, by their places.
    pub(super) fn free(&self) -> Vec<(Place, u64)> {
        let mut free: Vec<(Place, u64)> = self.free.iter().map(|&(bytes, place)| (place, bytes)).collect();
        free.sort_unstable();
        free
    }

    pub(super) fn buffer(&self, place: Place) -> Buffer {
        self.segments[&place.segment].buffer
    }

    /// The block right before a place, and those from there on.
    pub(super) fn before(&self, place: Place) -> Option<(Place, Block)> {
        let before = self.segments[&place.segment].blocks.range(..place.offset).next_back();
        before.map(|(&offset, block)| (Place { offset, ..place }, *block))
    }

    pub(super) fn from(&self, place: Place) -> impl Iterator<Item = (Place, Block)> + '_ {
        let blocks = self.segments[&place.segment].blocks.range(place.offset..);
        blocks.map(move |(&offset, block)| (Place { offset, ..place }, *block))
    }

    /// Drops the segments that have no memory behind them. Returns their buffers.
    pub(super) fn drop_absent(&mut self) -> Vec<Buffer> {
        let is_whole = |place: &Place| self.segments[&place.segment].blocks.len() == 1;
        let whole: Vec<Place> = self.absent().filter(is_whole).collect();
        whole.into_iter().map(|place| self.drop_segment(place).0).collect()
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
        assert!(segment.blocks.is_empty(), "nothing else of the segment is in use");
        self.by_buffer.remove(&segment.buffer);
        (segment.buffer, segment.bytes)
    }

    /// All that later answers depend on: how segments are divided, in the order in which they came, who holds what, and, where it
    /// is `now`, for how many searches those that are wholly free have been so.
    pub(super) fn state(&self, now: Option<u64>) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.segments.len() as u64).chain(self.segments.values().flat_map(move |segment| {
            let now = now.filter(|_| segment.blocks.len() == 1);
            let blocks = segment.blocks.values().flat_map(move |block| {
                let held = match block.held {
                    Held::By(storage) => [2, u64::from(storage.0)],
                    Held::FreeSince(since) => [1, now.map_or(0, |now| now - since)],
                    Held::Absent => [0, 0],
                };
                std::iter::once(block.bytes).chain(held)
            });
            std::iter::once(segment.blocks.len() as u64).chain(blocks)
        }))
    }

    fn insert(&mut self, place: Place, block: Block) {
        self.segment_mut(place.segment).blocks.insert(place.offset, block);
        match block.held {
            Held::By(_) => {}
            Held::FreeSince(_) => drop(self.free.insert((block.bytes, place))),
            Held::Absent => drop(self.absent.insert(place)),
        }
    }

    fn remove(&mut self, place: Place) -> Block {
        let blocks = &mut self.segment_mut(place.segment).blocks;
        let block = blocks.remove(&place.offset).expect("there is a block at every place that was given out");
        self.free.remove(&(block.bytes, place));
        self.absent.remove(&place);
        block
    }

    fn segment_mut(&mut self, number: u64) -> &mut Segment {
        self.segments.get_mut(&number).expect("a segment stays while it has blocks")
    }
}

#[cfg(test)]
impl BlockPool {
    /// By segment: its size, and its blocks with their first bytes.
    pub(super) fn blocks(&self) -> Vec<(u64, Vec<(u64, Block)>)> {
        let blocks =
            |segment: &Segment| segment.blocks.iter().map(|(&offset, &block)| (offset, block)).collect();
        self.segments.values().map(|segment| (segment.bytes, blocks(segment))).collect()
    }
}

#[cfg(test)]
impl Block {
    pub(super) fn holder(&self) -> Option<ValueId> {
        if let Held::By(storage) = self.held { Some(storage) } else { None }
    }
}
