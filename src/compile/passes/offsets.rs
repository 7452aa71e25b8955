//! Assigns each storage an offset in its pool's arena, so that storages that are live together never overlap.
//!
//! Storages that live to the end of the run are at the bottom; the others are placed largest first, each at its
//! lowest free offset: greedy-by-size (Pisarchyk and Lee 2020). The sections of a step are laid end to end; storages
//! that are live across sections keep their offset. No arena can be smaller than the peak of live bytes; if a plan is
//! larger, other orders are tried and the smallest plan wins.

use std::cmp::Reverse;
use std::ops::Range;

use super::Draft;
use super::interval_packing::IntervalPacking;
use crate::ir::{Action, Program, SectionKind, Stage};
use device::{Pool, Target};
use ops::ValueId;
use spec::Allocator;

pub(super) fn assign(draft: &mut Draft) {
    draft.program.arena_offsets = vec![None; draft.program.values.len()];
    reassign(&mut draft.program, draft.target);
    draft.program.stage = Stage::Placed;
}

/// Assigns the offsets of a program whose sizes have changed.
pub(crate) fn reassign(program: &mut Program, target: &Target) {
    let plans = match program.allocator {
        Allocator::Arena => true,
        // These allocators choose addresses at run time.
        Allocator::Direct | Allocator::Caching(_) => false,
    };
    if plans {
        for (pool, ranges) in Pool::ALL.into_iter().zip(LiveRanges::by_pool(program, target.alignment.0)) {
            let Plan { offsets, end } = smallest(&ranges, target.page.0);
            let mut bottom = 0;
            for range in &ranges.permanent {
                program.arena_offsets[range.storage.index()] = Some(bottom);
                bottom += range.bytes;
            }
            for (range, offset) in ranges.temporary.iter().zip(offsets) {
                program.arena_offsets[range.storage.index()] = Some(offset);
            }
            program.arenas[pool as usize] = end.next_multiple_of(target.page.0);
        }
    }
}

/// The live range of a storage on the time line of all sections, and its size.
#[derive(Clone, Copy, Debug)]
struct LiveRange {
    storage: ValueId,
    start: u32,
    /// Exclusive.
    end: u32,
    bytes: u64,
}

impl LiveRange {
    fn time(&self) -> Range<u32> {
        self.start..self.end
    }

    fn duration(&self) -> u64 {
        u64::from(self.end - self.start)
    }
}

/// Offsets of the temporary live ranges.
struct Plan {
    offsets: Vec<u64>,
    /// The end of the highest storage.
    end: u64,
}

/// The smallest of several plans, in pages; stops at the first that reaches the lower bound.
fn smallest(ranges: &LiveRanges, page: u64) -> Plan {
    let lower_bound = ranges.peak().next_multiple_of(page);
    let mut best = ranges.greedy(|range| range.bytes, u64::MAX);
    // Largest size times duration first, then longest first.
    let other_orders: [fn(&LiveRange) -> u64; 2] =
        [|range| range.bytes.saturating_mul(range.duration()), |range| range.duration()];
    for order in other_orders {
        if best.end <= lower_bound {
            break;
        }
        let plan = ranges.greedy(order, best.end);
        if plan.end < best.end {
            best = plan;
        }
    }
    best
}

/// All live ranges of a pool.
struct LiveRanges {
    /// Live from some point to the end of the run, largest first.
    permanent: Vec<LiveRange>,
    /// Total size of the permanent storages at the bottom.
    bottom: u64,
    /// By start.
    temporary: Vec<LiveRange>,
    /// The time range of each section.
    sections: Vec<Range<u32>>,
}

impl LiveRanges {
    /// The live ranges of each pool.
    fn by_pool(program: &Program, alignment: u64) -> [LiveRanges; Pool::ALL.len()] {
        let mut ranges = Pool::ALL.map(|_| Vec::new());
        // Leaked and collected storages would fill any arena: they get memory of their own.
        let outliving = program.mask(&program.outliving().collect::<Vec<_>>());
        // By storage: the index of its current live range in its pool.
        let mut current: Vec<Option<u32>> = vec![None; program.values.len()];
        let mut sections = Vec::with_capacity(program.sections.len());
        let mut now = 0;
        for section in &program.sections {
            let start = now;
            for instruction in &section.code {
                now += 1;
                match instruction.action {
                    Action::Allocate(storage) if !outliving[storage.index()] => {
                        let value = program.value(storage);
                        let ranges = &mut ranges[value.pool as usize];
                        let bytes = value.ty.bytes().next_multiple_of(alignment);
                        current[storage.index()] = Some(ranges.len() as u32);
                        ranges.push(LiveRange { storage, start: now, end: u32::MAX, bytes });
                    }
                    Action::Free(storage) => {
                        if let Some(range) = current[storage.index()].take() {
                            ranges[program.value(storage).pool as usize][range as usize].end = now;
                        }
                    }
                    _ => {}
                }
            }
            // Instructions are counted from 1.
            sections.push(start + 1..now + 1);
            debug_assert!(section.kind != SectionKind::Start || section.live_in.is_empty());
        }
        ranges.map(|ranges| LiveRanges::new(ranges, sections.clone()))
    }

    fn new(ranges: Vec<LiveRange>, sections: Vec<Range<u32>>) -> LiveRanges {
        let (mut permanent, temporary): (Vec<LiveRange>, Vec<LiveRange>) =
            ranges.into_iter().partition(|range| range.end == u32::MAX);
        permanent.sort_by_key(|range| (Reverse(range.bytes), range.start));
        let bottom = permanent.iter().map(|range| range.bytes).sum();
        LiveRanges { permanent, bottom, temporary, sections }
    }

    /// The peak of live bytes.
    fn peak(&self) -> u64 {
        let mut ends: Vec<(u32, u64)> = self.temporary.iter().map(|range| (range.end, range.bytes)).collect();
        ends.sort_unstable();
        let mut ends = ends.into_iter().peekable();
        let (mut live, mut peak) = (self.bottom, self.bottom);
        for range in &self.temporary {
            while let Some((_, bytes)) = ends.next_if(|&(end, _)| end <= range.start) {
                live -= bytes;
            }
            live += range.bytes;
            peak = peak.max(live);
        }
        peak
    }

    /// Gives each storage its lowest free offset, the greatest by `order` first. Stops when the plan reaches `bound`.
    fn greedy(&self, order: fn(&LiveRange) -> u64, bound: u64) -> Plan {
        let mut sorted: Vec<(Reverse<u64>, usize)> =
            self.temporary.iter().enumerate().map(|(index, range)| (Reverse(order(range)), index)).collect();
        sorted.sort_unstable();
        // Only storages that are live across sections meet storages of other sections, so each section has its own
        // packing.
        let mut plans: Vec<IntervalPacking> =
            self.sections.iter().cloned().map(IntervalPacking::new).collect();
        let mut offsets = vec![0; self.temporary.len()];
        let mut end = self.bottom;
        for (_, index) in sorted {
            let range = &self.temporary[index];
            let first = self.sections.partition_point(|section| section.end <= range.start);
            let last = self.sections.partition_point(|section| section.start < range.end);
            let plans = &mut plans[first..last];
            let mut offset = self.bottom;
            // A storage that is live across sections needs an offset that is free in all of them.
            loop {
                let before = offset;
                for plan in plans.iter() {
                    offset = plan.lowest_free(&range.time(), range.bytes, offset);
                }
                if offset == before || plans.len() == 1 {
                    break;
                }
            }
            offsets[index] = offset;
            end = end.max(offset + range.bytes);
            if end >= bound {
                break;
            }
            plans.iter_mut().for_each(|plan| plan.add(&range.time(), offset..offset + range.bytes));
        }
        Plan { offsets, end }
    }
}
