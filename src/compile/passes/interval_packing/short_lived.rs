//! Short-lived storages: one list per time slot, and a segment tree over the slots with the union of the offsets that
//! are occupied in each node, for ranges that cover whole slots.

use std::ops::Range;

/// Storages whose live ranges are at most `LONGEST` instructions long.
#[derive(Clone, Debug)]
pub(super) struct ShortLived {
    slots: Vec<Slot>,
    /// Occupied offsets per tree node: root at 1, children of `node` at `2 * node` and `2 * node + 1`.
    unions: Vec<Union>,
}

/// Storages that are live within a time slot, by offset. Struct of arrays: a search reads live ranges first and
/// offsets seldom.
#[derive(Clone, Debug, Default)]
struct Slot {
    time: Vec<Range<u32>>,
    offsets: Vec<Range<u64>>,
}

/// Offsets that are occupied at any time of a node: disjoint ranges, in order.
#[derive(Clone, Debug, Default)]
struct Union {
    ranges: Vec<Range<u64>>,
}

impl ShortLived {
    /// In instructions: the length of a slot, and the maximum length of a live range.
    const SLOT: u32 = 128;
    pub(super) const LONGEST: usize = 256;

    /// Empty, for a section of `instructions` instructions.
    pub(super) fn new(instructions: usize) -> ShortLived {
        let slots = instructions.div_ceil(ShortLived::SLOT as usize).next_power_of_two();
        ShortLived { slots: vec![Slot::default(); slots], unions: vec![Union::default(); 2 * slots] }
    }

    pub(super) fn lowest_free(&self, time: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let Range { start: first, end } = ShortLived::slots(time);
        // An empty live range (a section without code) overlaps nothing.
        let Some(last) = end.checked_sub(1) else { return offset };
        loop {
            let before = offset;
            offset = self.slots[first].lowest_free(time, bytes, offset);
            if first < last {
                offset = self.slots[last].lowest_free(time, bytes, offset);
            }
            // The slots in between, by their largest tree nodes.
            let (mut left, mut right) = (first + self.slots.len(), last + self.slots.len());
            while left / 2 != right / 2 {
                if left.is_multiple_of(2) {
                    offset = self.unions[left + 1].lowest_free(bytes, offset);
                }
                if !right.is_multiple_of(2) {
                    offset = self.unions[right - 1].lowest_free(bytes, offset);
                }
                (left, right) = (left / 2, right / 2);
            }
            if offset == before {
                return offset;
            }
        }
    }

    pub(super) fn add(&mut self, time: Range<u32>, offsets: Range<u64>) {
        for slot in ShortLived::slots(&time) {
            self.slots[slot].add(time.clone(), offsets.clone());
            let mut node = slot + self.slots.len();
            // Ancestors contain their descendants' offsets: if a node adds nothing, neither do its ancestors.
            while node > 0 && self.unions[node].add(&offsets) {
                node /= 2;
            }
        }
    }

    /// The slots that a live range touches.
    fn slots(time: &Range<u32>) -> Range<usize> {
        (time.start / ShortLived::SLOT) as usize..time.end.div_ceil(ShortLived::SLOT) as usize
    }
}

impl Slot {
    fn lowest_free(&self, time: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        for (other, offsets) in self.time.iter().zip(&self.offsets) {
            if other.start >= time.end || time.start >= other.end {
                continue;
            }
            if offsets.start >= offset + bytes {
                break;
            }
            offset = offset.max(offsets.end);
        }
        offset
    }

    fn add(&mut self, time: Range<u32>, offsets: Range<u64>) {
        let at = self.offsets.partition_point(|other| other.start <= offsets.start);
        self.time.insert(at, time);
        self.offsets.insert(at, offsets);
    }
}

impl Union {
    fn lowest_free(&self, bytes: u64, mut offset: u64) -> u64 {
        let first = self.ranges.partition_point(|range| range.end <= offset);
        for range in &self.ranges[first..] {
            if range.start >= offset + bytes {
                break;
            }
            offset = range.end;
        }
        offset
    }

    /// Adds a range. Returns whether any of it is new.
    fn add(&mut self, offsets: &Range<u64>) -> bool {
        let first = self.ranges.partition_point(|range| range.end < offsets.start);
        // Merges the ranges that it touches.
        let touched = self.ranges[first..].partition_point(|range| range.start <= offsets.end);
        match &mut self.ranges[first..first + touched] {
            [] => self.ranges.insert(first, offsets.clone()),
            [range] if range.start <= offsets.start && offsets.end <= range.end => return false,
            [range] => *range = range.start.min(offsets.start)..range.end.max(offsets.end),
            [lowest, .., highest] => {
                lowest.start = lowest.start.min(offsets.start);
                lowest.end = highest.end.max(offsets.end);
                self.ranges.drain(first + 1..first + touched);
            }
        }
        true
    }
}
