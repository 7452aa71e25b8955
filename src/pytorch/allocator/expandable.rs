//! `expandable_segments:True`: one segment a pool of each stream, whose addresses get memory page by page.
//!
//! The addresses of a segment are 9/8 of the card's memory. If no hole between live blocks has room for a request, another
//! segment begins; in which order PyTorch then searches the two was not observed: here, the older one first.

use super::{Allocator, Block, LARGE_SEGMENT, Place, Pool, SMALL_SEGMENT, Size, State};

/// The addresses of a segment on a card without a limit.
pub(crate) const ADDRESSES: u64 = LARGE_SEGMENT << 26;

impl Size {
    /// The bytes of a page.
    fn page(self) -> u64 {
        match self {
            Size::Small => SMALL_SEGMENT,
            Size::Large => LARGE_SEGMENT,
        }
    }
}

impl Allocator {
    /// Begins a segment: addresses without memory.
    fn begin(&mut self, pool: Pool) -> u32 {
        let bytes = self
            .card
            .map_or(ADDRESSES, |card| card.total + card.total / 8)
            .next_multiple_of(pool.size.page());
        self.segments += 1;
        let segment = self.segments;
        let index = self.add(Block {
            bytes,
            offset: 0,
            segment,
            pool,
            state: State::Used,
            before: None,
            after: None,
        });
        self.set_state(index, State::Unmapped);
        index
    }

    /// The size by which a free block is compared with others: with the addresses after it that have no memory.
    pub(super) fn bytes_when_grown(&self, index: u32) -> u64 {
        let Block { bytes, after, .. } = self.blocks[index as usize];
        let after = after.map(|after| &self.blocks[after as usize]);
        bytes + after.filter(|after| after.state == State::Unmapped).map_or(0, |after| after.bytes)
    }

    /// A free block for a request, after memory was mapped behind more addresses.
    ///
    /// # Errors
    /// Bytes beyond the limit. What was mapped before stays in the cache.
    pub(super) fn expand(&mut self, bytes: u64, pool: Pool) -> Result<u32, u64> {
        let mut index = self.room(bytes, pool).unwrap_or_else(|| self.begin(pool));
        if self.blocks[index as usize].state == State::Unmapped {
            self.map(index, bytes)?;
        }
        while self.blocks[index as usize].bytes < bytes {
            let missing = bytes - self.blocks[index as usize].bytes;
            index = self.blocks[index as usize].after.expect("there is room behind the block");
            self.map(index, missing)?;
        }
        Ok(index)
    }

    /// The block at the lowest address with room for a request in successive free and unmapped blocks. It is unmapped,
    /// or a free block before an unmapped one.
    fn room(&self, bytes: u64, pool: Pool) -> Option<u32> {
        let is_free = |index: &u32| self.blocks[*index as usize].state == State::Free;
        let starts = self.unmapped[pool.index()].values().map(|&index| {
            let before = self.blocks[index as usize].before;
            before.filter(is_free).unwrap_or(index)
        });
        let has_room = |start: &u32| {
            let mut room = 0;
            let mut next = Some(*start);
            while let Some(index) = next
                && room < bytes
            {
                let block = &self.blocks[index as usize];
                if block.state == State::Used {
                    break;
                }
                room += block.bytes;
                next = block.after;
            }
            room >= bytes
        };
        starts.into_iter().find(has_room)
    }

    /// Maps memory behind the first addresses of an unmapped block: whole pages, at most `bytes` rounded up.
    fn map(&mut self, index: u32, bytes: u64) -> Result<(), u64> {
        let Block { bytes: whole, offset, segment, pool, .. } = self.blocks[index as usize];
        let mapped = bytes.min(whole).next_multiple_of(pool.size.page());
        self.reserve(mapped)?;
        self.record_driver_call(Place { segment, offset, bytes: mapped }, pool, true);
        self.set_state(index, State::Used);
        if mapped < whole {
            let rest = self.split(index, mapped);
            self.set_state(rest, State::Unmapped);
        }
        self.merge(index, State::Free);
        Ok(())
    }

    /// Returns the memory of whole pages in a free block.
    pub(super) fn unmap(&mut self, index: u32) {
        let Block { bytes, offset, segment, pool, .. } = self.blocks[index as usize];
        let page = pool.size.page();
        let (begin, end) = (offset.next_multiple_of(page), (offset + bytes) / page * page);
        if begin >= end {
            return;
        }
        self.set_state(index, State::Used);
        let mut pages = index;
        if begin > offset {
            pages = self.split(index, begin - offset);
            self.set_state(index, State::Free);
        }
        if end < offset + bytes {
            let rest = self.split(pages, end - begin);
            self.set_state(rest, State::Free);
        }
        self.record_driver_call(Place { segment, offset: begin, bytes: end - begin }, pool, false);
        self.usage.reserved -= end - begin;
        self.merge(pages, State::Unmapped);
    }
}
