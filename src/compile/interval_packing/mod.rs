//! What is occupied of an arena in a section, when and where.
//!
//! A search must not look at all that is there, or deep models take the square of their layers. What lives for a few
//! instructions meets few others, which are found by time; what lives long meets whatever was there meanwhile, and is
//! found by offset.

mod long;
mod short;

use std::ops::Range;

use long::Long;
use short::Short;

/// Storages that have their places.
#[derive(Clone, Debug)]
pub(super) struct IntervalPacking {
    section: Range<u32>,
    long: Long,
    /// None where there is so little that one tree has all of it sooner.
    short: Option<Short>,
}

impl IntervalPacking {
    /// Instructions of a section that is not a deep model's.
    const FEW: usize = 1 << 14;

    /// Nothing yet of a section that lies there on the line of all sections.
    pub(super) fn new(section: Range<u32>) -> IntervalPacking {
        let short = (section.len() > IntervalPacking::FEW).then(|| Short::new(section.len()));
        IntervalPacking { section, long: Long::default(), short }
    }

    /// The lowest offset from `offset` on at which so many bytes meet nothing that is alive with them.
    pub(super) fn lowest_free(&self, alive: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let alive = self.within(alive);
        loop {
            let before = self.long.lowest_free(&alive, bytes, offset);
            offset = self.short.as_ref().map_or(before, |short| short.lowest_free(&alive, bytes, before));
            if offset == before {
                return offset;
            }
        }
    }

    pub(super) fn add(&mut self, alive: &Range<u32>, place: Range<u64>) {
        let alive = self.within(alive);
        match &mut self.short {
            Some(short) if alive.len() <= Short::LONGEST => short.add(alive, place),
            _ => self.long.add(alive, place),
        }
    }

    /// The part of a lifetime that lies in the section, counted from its start.
    fn within(&self, alive: &Range<u32>) -> Range<u32> {
        let Range { start, end } = self.section;
        alive.start.max(start) - start..alive.end.min(end) - start
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert_eq, prop_oneof, proptest};

    use super::*;
    use testing::{random_cases, tenth};

    /// By looking at all that have their places.
    fn lowest_free(taken: &[(Range<u32>, Range<u64>)], alive: &Range<u32>, bytes: u64, from: u64) -> u64 {
        let meets = |other: &Range<u32>| other.start < alive.end && alive.start < other.end;
        let mut places: Vec<_> = taken.iter().filter(|(other, _)| meets(other)).map(|(_, at)| at).collect();
        places.sort_by_key(|place| place.start);
        let behind = |offset: u64, place: &&Range<u64>| match **place {
            Range { start, end } if start < offset + bytes && offset < end => end,
            _ => offset,
        };
        places.iter().fold(from, behind)
    }

    proptest! {
        #![proptest_config(random_cases(tenth(64)))]

        /// Enough of them for trees of several levels, some of which live longer than the section.
        #[test]
        fn a_search_finds_what_looking_at_all_finds(
            lives in vec((0..4000u32, prop_oneof![1..20u32, 1..300u32, 200..4000u32], 1..12u64, 0..100u64), 0..1500),
            few in any::<bool>(),
        ) {
            let section = 500..3500;
            let (mut occupied, mut taken) = (IntervalPacking::new(section.clone()), Vec::new());
            occupied.short = (!few).then(|| Short::new(section.len()));
            for (start, duration, bytes, from) in lives {
                let alive = start..start + duration;
                let within = alive.start.max(section.start)..alive.end.min(section.end);
                if !within.is_empty() {
                    let found = occupied.lowest_free(&alive, bytes, from);
                    prop_assert_eq!(found, lowest_free(&taken, &within, bytes, from));
                    occupied.add(&alive, found..found + bytes);
                    taken.push((within, found..found + bytes));
                }
            }
        }
    }
}
