//! First-fit search for static memory planning (interval packing): the offsets that storages occupy in an arena during
//! one section, by live range.
//!
//! A storage is the memory of one or more values; its live range is a range of instruction numbers. A search must not
//! scan all storages, or the planning time of deep models is quadratic in the number of layers. Short-lived storages
//! overlap few others in time and are indexed by time. Long-lived storages overlap most others in time and are indexed
//! by offset.

mod long_lived;
mod short_lived;

use std::ops::Range;

use long_lived::LongLived;
use short_lived::ShortLived;

/// Storages with assigned offsets: their live ranges and the bytes that they occupy.
#[derive(Clone, Debug)]
pub(crate) struct IntervalPacking {
    section: Range<u32>,
    long: LongLived,
    /// `None` for small sections, where `long` alone is faster.
    short: Option<ShortLived>,
}

impl IntervalPacking {
    /// The most instructions of a small section.
    const SMALL: usize = 1 << 14;

    /// An empty packing of a section. `section` is its range of instruction numbers.
    pub(crate) fn new(section: Range<u32>) -> IntervalPacking {
        let short = (section.len() > IntervalPacking::SMALL).then(|| ShortLived::new(section.len()));
        IntervalPacking { section, long: LongLived::default(), short }
    }

    /// The lowest offset, from `offset` on, at which `bytes` bytes overlap no storage that is live at the same time.
    pub(crate) fn lowest_free(&self, time: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let time = self.within(time);
        loop {
            let before = self.long.lowest_free(&time, bytes, offset);
            offset = self.short.as_ref().map_or(before, |short| short.lowest_free(&time, bytes, before));
            if offset == before {
                return offset;
            }
        }
    }

    /// Adds a storage: its live range and the offsets that it occupies.
    pub(crate) fn add(&mut self, time: &Range<u32>, offsets: Range<u64>) {
        let time = self.within(time);
        match &mut self.short {
            Some(short) if time.len() <= ShortLived::LONGEST => short.add(time, offsets),
            _ => self.long.add(time, offsets),
        }
    }

    /// The part of a live range within the section, relative to the section's start.
    fn within(&self, time: &Range<u32>) -> Range<u32> {
        let Range { start, end } = self.section;
        time.start.max(start) - start..time.end.min(end) - start
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, prop_oneof, proptest};

    use super::*;
    use testing::{random_cases, tenth};

    /// Reference: scans all storages.
    fn lowest_free(taken: &[(Range<u32>, Range<u64>)], time: &Range<u32>, bytes: u64, from: u64) -> u64 {
        let meets = |other: &Range<u32>| other.start < time.end && time.start < other.end;
        let mut offsets: Vec<_> = taken.iter().filter(|(other, _)| meets(other)).map(|(_, at)| at).collect();
        offsets.sort_by_key(|offsets| offsets.start);
        let behind = |offset: u64, offsets: &&Range<u64>| match **offsets {
            Range { start, end } if start < offset + bytes && offset < end => end,
            _ => offset,
        };
        offsets.iter().fold(from, behind)
    }

    proptest! {
        #![proptest_config(random_cases(tenth(64)))]

        /// Enough storages for trees of several levels; some outlive the section.
        #[test]
        fn search_equals_scan_of_all_storages(
            ranges in vec((0..4000u32, prop_oneof![1..20u32, 1..300u32, 200..4000u32], 1..12u64, 0..100u64), 0..1500),
            is_small in any::<bool>(),
        ) {
            let section = 500..3500;
            let (mut packing, mut taken) = (IntervalPacking::new(section.clone()), Vec::new());
            packing.short = (!is_small).then(|| ShortLived::new(section.len()));
            for (start, duration, bytes, from) in ranges {
                let time = start..start + duration;
                let within = time.start.max(section.start)..time.end.min(section.end);
                if !within.is_empty() {
                    let found = packing.lowest_free(&time, bytes, from);
                    prop_assert_eq!(found, lowest_free(&taken, &within, bytes, from));
                    packing.add(&time, found..found + bytes);
                    taken.push((within, found..found + bytes));
                }
            }
        }
    }
}
