//! Storages are allocated and freed in pairs, carried from section to section, and in an arena do not overlap while
//! they are live.

use std::collections::BTreeMap;

use super::{Invariant, Violation, at, broken};
use crate::ir::{Action, Program, Section, SectionKind};
use device::Pool;
use ops::ValueId;
use spec::Allocator;

pub(super) fn freed_once(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut live = vec![false; program.values.len()];
    section.live_in.iter().for_each(|storage| live[storage.index()] = true);
    for instruction in &section.code {
        let is_valid = match &instruction.action {
            Action::Allocate(storage) => !std::mem::replace(&mut live[storage.index()], true),
            Action::Free(storage) | Action::Leak(storage) => {
                std::mem::replace(&mut live[storage.index()], false)
            }
            Action::Collect { value, .. } => {
                std::mem::replace(&mut live[program.storage(*value).index()], false)
            }
            action => action.touches().all(|id| live[program.storage(id).index()]),
        };
        if !is_valid {
            return broken(Invariant::FreedOnce, at(program, section, instruction));
        }
    }
    let count = live.iter().filter(|live| **live).count();
    if count != section.live_out.len() || !section.live_out.iter().all(|storage| live[storage.index()]) {
        let detail = format!(
            "{} ends with {count} live storages instead of {}",
            section.kind.name(),
            section.live_out.len()
        );
        return broken(Invariant::FreedOnce, detail);
    }
    Ok(())
}

pub(super) fn overlap(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut pools = Pool::ALL.map(|_| BTreeMap::new());
    let outliving = program.mask(&program.outliving().collect::<Vec<_>>());
    for &storage in section.live_in.iter().filter(|storage| !outliving[storage.index()]) {
        occupy(program, &mut pools, storage)?;
    }
    for instruction in &section.code {
        match instruction.action {
            // Leaked and collected storages have memory of their own.
            Action::Allocate(storage) if outliving[storage.index()] => {}
            Action::Allocate(storage) => occupy(program, &mut pools, storage)?,
            Action::Free(storage) => {
                if let Some(offset) = program.arena_offsets[storage.index()] {
                    pools[program.value(storage).pool as usize].remove(&offset);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Live storages by offset: the end of each, and its id.
type OccupiedRanges = BTreeMap<u64, (u64, ValueId)>;

fn occupy(program: &Program, pools: &mut [OccupiedRanges], storage: ValueId) -> Result<(), Violation> {
    let Some(offset) = program.arena_offsets[storage.index()] else {
        return match program.allocator {
            Allocator::Arena => {
                broken(Invariant::Overlap, format!("{} has no offset", program.full_name(storage)))
            }
            Allocator::Direct | Allocator::Caching(_) => Ok(()),
        };
    };
    let value = program.value(storage);
    let end = offset + value.ty.bytes();
    let occupied = &mut pools[value.pool as usize];
    let neighbour = occupied.range(..end).next_back().filter(|(_, (other_end, _))| *other_end > offset);
    if let Some((_, (_, other))) = neighbour {
        let detail = format!("{} overlaps {}", program.full_name(storage), program.full_name(*other));
        return broken(Invariant::Overlap, detail);
    }
    if end > program.arenas[value.pool as usize] {
        return broken(Invariant::Overlap, format!("{} ends beyond the arena", program.full_name(storage)));
    }
    occupied.insert(offset, (end, storage));
    Ok(())
}

/// All pairs of sections that can run in succession.
fn successions(program: &Program) -> Vec<(&Section, &Section)> {
    let start = program.sections.iter().filter(|section| section.kind == SectionKind::Start).collect();
    let cycles: [Vec<&Section>; 3] = [start, program.step().collect(), program.evaluation().collect()];
    let mut successions = Vec::new();
    for cycle in &cycles {
        successions.extend(cycle.windows(2).map(|pair| (pair[0], pair[1])));
        successions.extend(
            cycle.iter().filter(|section| section.repeat_count > 1).map(|&section| (section, section)),
        );
    }
    // A step or an evaluation can follow any step or evaluation.
    for last in cycles.iter().filter_map(|cycle| cycle.last()) {
        successions.extend(cycles[1..].iter().filter_map(|cycle| Some((*last, *cycle.first()?))));
    }
    successions
}

/// The live-out storages of a section are the live-in storages of each section that can follow.
pub(super) fn carried(program: &Program) -> Result<(), Violation> {
    let sorted = |ids: &[ValueId]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    for (before, after) in successions(program) {
        // Lazily initialised storages are live when a section that follows the first step begins, and before an
        // evaluation.
        let lazily_initialised: Vec<ValueId> = match before.kind {
            SectionKind::Start => program.lazily_initialised().collect(),
            _ => Vec::new(),
        };
        if sorted(&[&before.live_out[..], &lazily_initialised].concat()) != sorted(&after.live_in) {
            let detail =
                format!("live-in of {} is not live-out of {}", after.kind.name(), before.kind.name());
            return broken(Invariant::LiveSets, detail);
        }
    }
    match program.section(SectionKind::Start) {
        Some(start) if start.live_in.is_empty() => Ok(()),
        _ => broken(Invariant::LiveSets, "nothing is live before the start"),
    }
}
