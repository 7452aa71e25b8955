//! A place in its pool's arena for each storage, so that those alive together never overlap.
//!
//! What lives for the whole run lies at the bottom; the rest goes largest first, each at the lowest free offset:
//! the greedy-by-size plan of Pisarchyk and Lee (2020). The sections of a step are laid end to end; what is
//! carried between them keeps its place throughout.

use super::Draft;
use super::program::{Action, Program, SectionKind, Stage};
use crate::device::Pool;
use crate::ops::ValueId;
use crate::spec::Allocator;

pub(super) fn place(draft: &mut Draft) {
    let program = &mut draft.program;
    program.places = vec![None; program.values.len()];
    if draft.config.strategy.allocator == Allocator::Arena {
        let alignment = draft.target.alignment.0;
        for pool in Pool::ALL {
            let end = place_pool(program, pool, alignment);
            program.arenas[pool as usize] = end.next_multiple_of(draft.target.page.0);
        }
    }
    program.stage = Stage::Placed;
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

fn place_pool(program: &mut Program, pool: Pool, alignment: u64) -> u64 {
    let mut lives = lives(program, pool, alignment);
    let for_good = |life: &Life| life.end == u32::MAX;
    lives.sort_by_key(|life| (!for_good(life), std::cmp::Reverse(life.bytes), life.start));
    // Sorted by offset.
    let mut placed: Vec<(u64, Life)> = Vec::with_capacity(lives.len());
    let mut arena = 0;
    for life in lives {
        let mut offset = 0;
        for (other_offset, other) in &placed {
            if other.start >= life.end || life.start >= other.end {
                continue;
            }
            if other_offset.saturating_sub(offset) >= life.bytes && *other_offset > offset {
                break;
            }
            offset = offset.max(other_offset + other.bytes);
        }
        program.places[life.storage.index()] = Some(offset);
        arena = arena.max(offset + life.bytes);
        let at = placed.partition_point(|(other, _)| *other <= offset);
        placed.insert(at, (offset, life));
    }
    arena
}

fn lives(program: &Program, pool: Pool, alignment: u64) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    let mut open: Vec<Option<usize>> = vec![None; program.values.len()];
    let mut now = 0;
    for section in &program.sections {
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
        debug_assert!(section.kind != SectionKind::Start || section.entry.is_empty());
    }
    lives
}
