//! A place in its pool's arena for each storage, so that those alive together never overlap.
//!
//! What lives for the whole run lies at the bottom; the rest goes largest first, each at the lowest free offset:
//! the greedy-by-size plan of Pisarchyk and Lee (2020). The sections of a step are laid end to end; what is
//! carried between them keeps its place throughout. No arena can be smaller than what is alive at one time; where a
//! plan is larger, others are tried and the smallest is taken.

use std::cmp::Reverse;
use std::ops::Range;

use super::Draft;
use super::program::{Action, Program, SectionKind, Stage};
use crate::device::{Pool, Target};
use crate::ops::ValueId;
use crate::spec::Allocator;

pub(super) fn place(draft: &mut Draft) {
    draft.program.places = vec![None; draft.program.values.len()];
    place_anew(&mut draft.program, draft.config.strategy.allocator, draft.target);
    draft.program.stage = Stage::Placed;
}

/// Places every storage of a program whose sizes have changed.
pub(super) fn place_anew(program: &mut Program, allocator: Allocator, target: &Target) {
    if allocator == Allocator::Arena {
        for pool in Pool::ALL {
            let lives = Lives::new(program, pool, target.alignment.0);
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
    let mut best = lives.greedy(|life| life.bytes);
    // What takes most over time goes first, or what stays longest.
    let others: [fn(&Life) -> u64; 2] =
        [|life| life.bytes.saturating_mul(life.duration()), |life| life.duration()];
    for order in others {
        if best.end <= least {
            break;
        }
        let plan = lives.greedy(order);
        if plan.end < best.end {
            best = plan;
        }
    }
    best
}

/// What has its place in one section, sorted by offset, in blocks: the search for a place passes most of them by
/// as a whole.
#[derive(Clone, Debug, Default)]
struct SectionPlan {
    blocks: Vec<Block>,
}

impl SectionPlan {
    /// The lowest offset from `offset` on at which a storage meets nothing that is alive with it.
    fn lowest_free(&self, life: &Life, mut offset: u64) -> u64 {
        for block in &self.blocks {
            if block.low() >= offset + life.bytes {
                break;
            }
            offset = block.lowest_free(life, offset);
        }
        offset
    }

    fn add(&mut self, life: &Life, offset: u64) {
        let after = self.blocks.partition_point(|block| block.low() <= offset);
        let at = after.saturating_sub(1);
        match self.blocks.get_mut(at) {
            None => self.blocks.push(Block::new(vec![(life.start, life.end)], vec![(offset, offset + life.bytes)])),
            Some(block) => {
                block.add(life, offset);
                if block.alive.len() > Block::MOST {
                    let half = block.split();
                    self.blocks.insert(at + 1, half);
                }
            }
        }
    }
}

/// Neighbours by offset. A field to an array: the search for a place looks at lifetimes first and seldom at the rest.
#[derive(Clone, Debug)]
struct Block {
    alive: Vec<(u32, u32)>,
    place: Vec<(u64, u64)>,
    /// The earliest and latest start and end.
    starts: (u32, u32),
    ends: (u32, u32),
    /// Where the highest ends.
    high: u64,
    /// The largest stretch between its storages that none of them covers.
    gap: u64,
}

impl Block {
    const MOST: usize = 64;

    fn new(alive: Vec<(u32, u32)>, place: Vec<(u64, u64)>) -> Block {
        let mut block = Block { alive, place, starts: (u32::MAX, 0), ends: (u32::MAX, 0), high: 0, gap: 0 };
        for &(start, end) in &block.alive {
            block.starts = (block.starts.0.min(start), block.starts.1.max(start));
            block.ends = (block.ends.0.min(end), block.ends.1.max(end));
        }
        block.measure();
        block
    }

    /// Where the lowest begins: no block is empty.
    fn low(&self) -> u64 {
        self.place[0].0
    }

    fn measure(&mut self) {
        self.high = self.place[0].1;
        self.gap = 0;
        for &(low, high) in &self.place[1..] {
            self.gap = self.gap.max(low.saturating_sub(self.high));
            self.high = self.high.max(high);
        }
    }

    fn lowest_free(&self, life: &Life, mut offset: u64) -> u64 {
        let none_alive = self.starts.0 >= life.end || life.start >= self.ends.1;
        if none_alive || self.high <= offset {
            return offset;
        }
        let all_alive = self.starts.1 < life.end && life.start < self.ends.0;
        if all_alive && self.gap < life.bytes {
            return self.high;
        }
        for (&(start, end), &(low, high)) in self.alive.iter().zip(&self.place) {
            if start >= life.end || life.start >= end {
                continue;
            }
            if low >= offset + life.bytes {
                break;
            }
            offset = offset.max(high);
        }
        offset
    }

    fn add(&mut self, life: &Life, offset: u64) {
        let at = self.place.partition_point(|&(low, _)| low <= offset);
        self.alive.insert(at, (life.start, life.end));
        self.place.insert(at, (offset, offset + life.bytes));
        self.starts = (self.starts.0.min(life.start), self.starts.1.max(life.start));
        self.ends = (self.ends.0.min(life.end), self.ends.1.max(life.end));
        self.measure();
    }

    /// Keeps the lower half and returns the other.
    fn split(&mut self) -> Block {
        let at = self.alive.len() / 2;
        let upper = Block::new(self.alive.split_off(at), self.place.split_off(at));
        *self = Block::new(std::mem::take(&mut self.alive), std::mem::take(&mut self.place));
        upper
    }
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
    fn new(program: &Program, pool: Pool, alignment: u64) -> Lives {
        let mut lives: Vec<Life> = Vec::new();
        let mut open: Vec<Option<usize>> = vec![None; program.values.len()];
        let mut sections = Vec::with_capacity(program.sections.len());
        let mut now = 0;
        for section in &program.sections {
            let start = now;
            for instruction in &section.code {
                now += 1;
                match instruction.action {
                    Action::Allocate(storage) if program.value(storage).pool == pool => {
                        let bytes = program.ty(storage).bytes().next_multiple_of(alignment);
                        open[storage.index()] = Some(lives.len());
                        lives.push(Life { storage, start: now, end: u32::MAX, bytes });
                    }
                    Action::Free(storage) => {
                        if let Some(life) = open[storage.index()].take() {
                            lives[life].end = now;
                        }
                    }
                    _ => {}
                }
            }
            // Instructions count from one.
            sections.push(start + 1..now + 1);
            debug_assert!(section.kind != SectionKind::Start || section.entry.is_empty());
        }
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

    /// Gives each the lowest offset that is free, the greatest by `order` first.
    fn greedy(&self, order: fn(&Life) -> u64) -> Plan {
        let mut sorted: Vec<(Reverse<u64>, usize)> =
            self.passing.iter().enumerate().map(|(index, life)| (Reverse(order(life)), index)).collect();
        sorted.sort_unstable();
        // Only what is carried meets storages of other sections, so each section has a plan of its own.
        let mut plans = vec![SectionPlan::default(); self.sections.len()];
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
                    offset = plan.lowest_free(life, offset);
                }
                if offset == before || plans.len() == 1 {
                    break;
                }
            }
            offsets[index] = offset;
            end = end.max(offset + life.bytes);
            plans.iter_mut().for_each(|plan| plan.add(life, offset));
        }
        Plan { offsets, end }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, proptest};

    use crate::compile::compile;
    use crate::device::{Pool, Target};
    use crate::memory::peak_live;
    use crate::spec::Allocator;
    use crate::testing::{any_config, any_target};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// At most a twentieth of what is alive. Of 20,000 random programs, 99 in 100 had no more than 0.3 %.
        #[test]
        fn gaps_are_few(mut config in any_config(), target in any_target()) {
            config.strategy.allocator = Allocator::Arena;
            // What a page rounds up is no gap.
            let target = Target { page: target.alignment, ..target };
            let program = compile(&config, &target).unwrap();
            let (live, reserved) = (peak_live(&program, &target), program.arenas[Pool::Device as usize]);
            prop_assert!(live <= reserved && reserved <= live + live / 20, "{reserved} bytes for {live}");
        }
    }
}
