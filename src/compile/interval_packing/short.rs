//! What lives for a few instructions: a list for each stretch of time, and over the stretches a tree of the offsets that
//! are occupied at any time of a branch, for what lives longer than a stretch and meets all of it.

use std::ops::Range;

/// Storages that live no longer than `LONGEST`.
#[derive(Clone, Debug)]
pub(super) struct Short {
    stretches: Vec<Stretch>,
    /// What is occupied in stretches: of the root at 1, of the two below `node` at `2 * node` and `2 * node + 1`.
    unions: Vec<Union>,
}

/// Storages that are alive within a stretch of time, in the order of their offsets. A field to an array: a search looks
/// at lifetimes first and seldom at the rest.
#[derive(Clone, Debug, Default)]
struct Stretch {
    alive: Vec<Range<u32>>,
    places: Vec<Range<u64>>,
}

/// Offsets that are occupied at some time or other: ranges that lie apart, in order.
#[derive(Clone, Debug, Default)]
struct Union {
    ranges: Vec<Range<u64>>,
}

impl Short {
    /// In instructions: as long as a stretch takes, and as what is in the lists may live.
    const STRETCH: u32 = 128;
    pub(super) const LONGEST: usize = 256;

    /// Nothing yet, for so many instructions.
    pub(super) fn new(instructions: usize) -> Short {
        let stretches = instructions.div_ceil(Short::STRETCH as usize).next_power_of_two();
        Short {
            stretches: vec![Stretch::default(); stretches],
            unions: vec![Union::default(); 2 * stretches],
        }
    }

    pub(super) fn lowest_free(&self, alive: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let Range { start: first, end } = Short::stretches(alive);
        // What lives for no time, in a section without code, meets nothing.
        let Some(last) = end.checked_sub(1) else { return offset };
        loop {
            let before = offset;
            offset = self.stretches[first].lowest_free(alive, bytes, offset);
            if first < last {
                offset = self.stretches[last].lowest_free(alive, bytes, offset);
            }
            // All of the stretches in between, by the largest branches.
            let (mut left, mut right) = (first + self.stretches.len(), last + self.stretches.len());
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

    pub(super) fn add(&mut self, alive: Range<u32>, place: Range<u64>) {
        for stretch in Short::stretches(&alive) {
            self.stretches[stretch].add(alive.clone(), place.clone());
            let mut node = stretch + self.stretches.len();
            // What a branch has, those that it is in have.
            while node > 0 && self.unions[node].add(&place) {
                node /= 2;
            }
        }
    }

    /// Those that a lifetime touches.
    fn stretches(alive: &Range<u32>) -> Range<usize> {
        (alive.start / Short::STRETCH) as usize..alive.end.div_ceil(Short::STRETCH) as usize
    }
}

impl Stretch {
    fn lowest_free(&self, alive: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        for (other, place) in self.alive.iter().zip(&self.places) {
            if other.start >= alive.end || alive.start >= other.end {
                continue;
            }
            if place.start >= offset + bytes {
                break;
            }
            offset = offset.max(place.end);
        }
        offset
    }

    fn add(&mut self, alive: Range<u32>, place: Range<u64>) {
        let at = self.places.partition_point(|other| other.start <= place.start);
        self.alive.insert(at, alive);
        self.places.insert(at, place);
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

    /// Whether any of it is new.
    fn add(&mut self, place: &Range<u64>) -> bool {
        let first = self.ranges.partition_point(|range| range.end < place.start);
        // Those that it touches become one with it.
        let touched = self.ranges[first..].partition_point(|range| range.start <= place.end);
        match &mut self.ranges[first..first + touched] {
            [] => self.ranges.insert(first, place.clone()),
            [range] if range.start <= place.start && place.end <= range.end => return false,
            [range] => *range = range.start.min(place.start)..range.end.max(place.end),
            [lowest, .., highest] => {
                lowest.start = lowest.start.min(place.start);
                lowest.end = highest.end.max(place.end);
                self.ranges.drain(first + 1..first + touched);
            }
        }
        true
    }
}
