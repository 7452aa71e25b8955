//! A place in its pool's arena for each storage, so that those alive together never overlap.
//!
//! What lives for the whole run lies at the bottom; the rest goes largest first, each at the lowest free offset:
//! the greedy-by-size plan of Pisarchyk and Lee (2020). The sections of a step are laid end to end; what is
//! carried between them keeps its place throughout. No arena can be smaller than what is alive at one time; where a
//! plan is larger, others are tried and the smallest is taken.

use std::cmp::Reverse;
use std::ops::Range;

use super::Draft;
use super::instruction::Action;
use super::interval_packing::IntervalPacking;
use super::program::{Program, SectionKind, Stage};
use device::{Pool, Target};
use ops::ValueId;
use spec::Allocator;

pub(super) fn place(draft: &mut Draft) {
    draft.program.places = vec![None; draft.program.values.len()];
    place_anew(&mut draft.program, draft.target);
    draft.program.stage = Stage::Placed;
}

/// Places every storage of a program whose sizes have changed.
pub(super) fn place_anew(program: &mut Program, target: &Target) {
    let plans = match program.allocator {
        Allocator::Arena => true,
        // They find a place when they are asked for one.
        Allocator::Direct | Allocator::Caching(_) => false,
    };
    if plans {
        for (pool, lives) in Pool::ALL.into_iter().zip(Lives::by_pool(program, target.alignment.0)) {
            let Plan { offsets, end } = smallest(&lives, target.page.0);
            let mut bottom = 0;
            for life in &lives.for_good {
                program.places[life.storage.index()] = Some(bottom);
                bottom += life.bytes;
            }
            for (life, offset) in lives.passing.iter().zip(offsets) {
                program.places[life.storage.index()] = Some(offset);
            }
            program.arenas[pool as usize] = end.next_multiple_of(target.page.0);
        }
    }
}

/// When a storage is alive, on the line of all sections laid end to end, and how much it takes.
#[derive(Clone, Copy, Debug)]
struct Life {
    storage: ValueId,
    start: u32,
    /// Excluded.
    end: u32,
    bytes: u64,
}

impl Life {
    fn alive(&self) -> Range<u32> {
        self.start..self.end
    }

    fn duration(&self) -> u64 {
        u64::from(self.end - self.start)
    }
}

/// Offsets of passing lives.
struct Plan {
    offsets: Vec<u64>,
    /// Where the highest of all storages ends.
    end: u64,
}

/// The smallest of several plans, in pages: the first that is as small as any can be, if one is.
fn smallest(lives: &Lives, page: u64) -> Plan {
    let least = lives.peak().next_multiple_of(page);
    let mut best = lives.greedy(|life| life.bytes, u64::MAX);
    // What takes most over time goes first, or what stays longest.
    let others: [fn(&Life) -> u64; 2] =
        [|life| life.bytes.saturating_mul(life.duration()), |life| life.duration()];
    for order in others {
        if best.end <= least {
            break;
        }
        let plan = lives.greedy(order, best.end);
        if plan.end < best.end {
            best = plan;
        }
    }
    best
}

/// All lives of a pool.
struct Lives {
    /// Alive from some point on to the end of the run, largest first.
    for_good: Vec<Life>,
    /// Where these, at the bottom, end.
    bottom: u64,
    /// By their starts.
    passing: Vec<Life>,
    /// Where on the line each section lies.
    sections: Vec<Range<u32>>,
}

impl Lives {
    /// Those of each pool.
    fn by_pool(program: &Program, alignment: u64) -> [Lives; Pool::ALL.len()] {
        let mut lives = Pool::ALL.map(|_| Vec::new());
        // However large an arena is, what is left behind would fill it: that gets memory of its own.
        let leaked = program.marked(&program.left_behind().collect::<Vec<_>>());
        // Where among those of its pool each storage is that is alive.
        let mut open: Vec<Option<u32>> = vec![None; program.values.len()];
        let mut sections = Vec::with_capacity(program.sections.len());
        let mut now = 0;
        for section in &program.sections {
            let start = now;
            for instruction in &section.code {
                now += 1;
                match instruction.action {
                    Action::Allocate(storage) if !leaked[storage.index()] => {
                        let value = program.value(storage);
                        let lives = &mut lives[value.pool as usize];
                        let bytes = value.ty.bytes().next_multiple_of(alignment);
                        open[storage.index()] = Some(lives.len() as u32);
                        lives.push(Life { storage, start: now, end: u32::MAX, bytes });
                    }
                    Action::Free(storage) => {
                        if let Some(life) = open[storage.index()].take() {
                            lives[program.value(storage).pool as usize][life as usize].end = now;
                        }
                    }
                    _ => {}
                }
            }
            // Instructions count from one.
            sections.push(start + 1..now + 1);
            debug_assert!(section.kind != SectionKind::Start || section.entry.is_empty());
        }
        lives.map(|lives| Lives::new(lives, sections.clone()))
    }

    fn new(lives: Vec<Life>, sections: Vec<Range<u32>>) -> Lives {
        let (mut for_good, passing): (Vec<Life>, Vec<Life>) =
            lives.into_iter().partition(|life| life.end == u32::MAX);
        for_good.sort_by_key(|life| (Reverse(life.bytes), life.start));
        let bottom = for_good.iter().map(|life| life.bytes).sum();
        Lives { for_good, bottom, passing, sections }
    }

    /// The most that is alive at one time.
    fn peak(&self) -> u64 {
        let mut ends: Vec<(u32, u64)> = self.passing.iter().map(|life| (life.end, life.bytes)).collect();
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        let (mut live, mut peak) = (self.bottom, self.bottom);
        for life in &self.passing {
            while let Some((_, bytes)) = ends.next_if(|&(end, _)| end <= life.start) {
                live -= bytes;
            }
            live += life.bytes;
            peak = peak.max(live);
        }
        peak
    }

    /// Gives each the lowest offset that is free, the greatest by `order` first. A plan that does not end before
    /// `bound` is given up.
    fn greedy(&self, order: fn(&Life) -> u64, bound: u64) -> Plan {
        let mut sorted: Vec<(Reverse<u64>, usize)> =
            self.passing.iter().enumerate().map(|(index, life)| (Reverse(order(life)), index)).collect();
        sorted.sort_unstable();
        // Only what is carried meets storages of other sections, so each section has a plan of its own.
        let mut plans: Vec<IntervalPacking> =
            self.sections.iter().cloned().map(IntervalPacking::new).collect();
        let mut offsets = vec![0; self.passing.len()];
        let mut end = self.bottom;
        for (_, index) in sorted {
            let life = &self.passing[index];
            let first = self.sections.partition_point(|section| section.end <= life.start);
            let last = self.sections.partition_point(|section| section.start < life.end);
            let plans = &mut plans[first..last];
            let mut offset = self.bottom;
            // What is carried must find a place that is free in all of its sections.
            loop {
                let before = offset;
                for plan in plans.iter() {
                    offset = plan.lowest_free(&life.alive(), life.bytes, offset);
                }
                if offset == before || plans.len() == 1 {
                    break;
                }
            }
            offsets[index] = offset;
            end = end.max(offset + life.bytes);
            if end >= bound {
                break;
            }
            plans.iter_mut().for_each(|plan| plan.add(&life.alive(), offset..offset + life.bytes));
        }
        Plan { offsets, end }
    }
}
