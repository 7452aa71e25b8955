//! A place in its pool's arena for each storage, so that those alive together never overlap.
//!
//! What lives for the whole run lies at the bottom; the rest goes largest first, each at the lowest free offset:
//! the greedy-by-size plan of Pisarchyk and Lee (2020). The sections of a step are laid end to end; what is
//! carried between them keeps its place throughout.

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
            let end = place_pool(program, pool, target.alignment.0);
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

/// Returns the end of the highest storage.
fn place_pool(program: &mut Program, pool: Pool, alignment: u64) -> u64 {
    let Lives { for_good, mut passing, sections } = lives(program, pool, alignment);
    let mut bottom = 0;
    for life in for_good {
        program.places[life.storage.index()] = Some(bottom);
        bottom += life.bytes;
    }
    passing.sort_unstable_by_key(|life| (std::cmp::Reverse(life.bytes), life.start));
    // Only what is carried meets storages of other sections, so each section has a plan of its own.
    let mut plans = vec![SectionPlan::default(); sections.len()];
    let mut arena = bottom;
    for life in passing {
        let first = sections.partition_point(|section| section.end <= life.start);
        let last = sections.partition_point(|section| section.start < life.end);
        let mut offset = bottom;
        // What is carried must find a place that is free in all of its sections.
        loop {
            let before = offset;
            for plan in &plans[first..last] {
                offset = plan.lowest_free(&life, offset);
            }
            if offset == before || last - first == 1 {
                break;
            }
        }
        program.places[life.storage.index()] = Some(offset);
        arena = arena.max(offset + life.bytes);
        plans[first..last].iter_mut().for_each(|plan| plan.add(&life, offset));
    }
    arena
}

/// What has its place in one section, sorted by offset. A field to an array: the search for a place looks at
/// lifetimes first and seldom at the rest.
#[derive(Clone, Debug, Default)]
struct SectionPlan {
    alive: Vec<(u32, u32)>,
    place: Vec<(u64, u64)>,
}

impl SectionPlan {
    /// The lowest offset from `offset` on at which a storage meets nothing that is alive with it.
    fn lowest_free(&self, life: &Life, mut offset: u64) -> u64 {
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
    }
}

struct Lives {
    /// Alive from some point on to the end of the run, largest first.
    for_good: Vec<Life>,
    passing: Vec<Life>,
    /// Where on the line each section lies.
    sections: Vec<Range<u32>>,
}

fn lives(program: &Program, pool: Pool, alignment: u64) -> Lives {
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
    for_good.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.start));
    Lives { for_good, passing, sections }
}
