//! Storages are allocated and freed in pairs, and in an arena do not overlap while they are live.

use std::collections::BTreeMap;

use super::{Invariant, Violation, at, broken};
use crate::ir::{Action, Program, Section};
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
    let leaked = program.mask(&program.leaked().collect::<Vec<_>>());
    for &storage in section.live_in.iter().filter(|storage| !leaked[storage.index()]) {
        occupy(program, &mut pools, storage)?;
    }
    for instruction in &section.code {
        match instruction.action {
            // Leaked storages have memory of their own.
            Action::Allocate(storage) if leaked[storage.index()] => {}
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
