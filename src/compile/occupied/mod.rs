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
pub(super) struct Occupied {
    section: Range<u32>,
    long: Long,
    short: Short,
}

impl Occupied {
    /// Nothing yet of a section that lies there on the line of all sections.
    pub(super) fn new(section: Range<u32>) -> Occupied {
        let short = Short::new(section.len());
        Occupied { section, long: Long::default(), short }
    }

    /// The lowest offset from `offset` on at which so many bytes meet nothing that is alive with them.
    pub(super) fn lowest_free(&self, alive: &Range<u32>, bytes: u64, mut offset: u64) -> u64 {
        let alive = self.within(alive);
        loop {
            let before = self.long.lowest_free(&alive, bytes, offset);
            offset = self.short.lowest_free(&alive, bytes, before);
            if offset == before {
                return offset;
            }
        }
    }

    pub(super) fn add(&mut self, alive: &Range<u32>, place: Range<u64>) {
        let alive = self.within(alive);
        if alive.len() <= Short::LONGEST { self.short.add(alive, place) } else { self.long.add(alive, place) }
    }

    /// The part of a lifetime that lies in the section, counted from its start.
    fn within(&self, alive: &Range<u32>) -> Range<u32> {
        let Range { start, end } = self.section;
        alive.start.max(start) - start..alive.end.min(end) - start
    }
}
