//! Storages are allocated and freed in pairs, and in an arena have places of their own while they are alive.

use std::collections::BTreeMap;

use super::{Invariant, Violation, at, broken};
use crate::instruction::Action;
use crate::program::{Program, Section};
use device::Pool;
use ops::ValueId;
use spec::Allocator;

pub(super) fn freed_once(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut alive = vec![false; program.values.len()];
    section.entry.iter().for_each(|storage| alive[storage.index()] = true);
    for instruction in &section.code {
        let right = match &instruction.action {
            Action::Allocate(storage) => !std::mem::replace(&mut alive[storage.index()], true),
            Action::Free(storage) | Action::Leak(storage) => {
                std::mem::replace(&mut alive[storage.index()], false)
            }
            action => action.touches().all(|id| alive[program.storage(id).index()]),
        };
        if !right {
            return broken(Invariant::FreedOnce, at(program, section, instruction));
        }
    }
    let left = alive.iter().filter(|alive| **alive).count();
    if left != section.exit.len() || !section.exit.iter().all(|storage| alive[storage.index()]) {
        let detail = format!("{} leaves {left} storages, not {}", section.kind.name(), section.exit.len());
        return broken(Invariant::FreedOnce, detail);
    }
    Ok(())
}

pub(super) fn overlap(program: &Program, section: &Section) -> Result<(), Violation> {
    let mut pools = Pool::ALL.map(|_| BTreeMap::new());
    let leaked = program.marked(&program.left_behind().collect::<Vec<_>>());
    for &storage in section.entry.iter().filter(|storage| !leaked[storage.index()]) {
        occupy(program, &mut pools, storage)?;
    }
    for instruction in &section.code {
        match instruction.action {
            // What is left behind has memory of its own.
            Action::Allocate(storage) if leaked[storage.index()] => {}
            Action::Allocate(storage) => occupy(program, &mut pools, storage)?,
            Action::Free(storage) => {
                if let Some(offset) = program.places[storage.index()] {
                    pools[program.value(storage).pool as usize].remove(&offset);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Alive storages by offset: where each ends, and which it is.
type Places = BTreeMap<u64, (u64, ValueId)>;

fn occupy(program: &Program, pools: &mut [Places], storage: ValueId) -> Result<(), Violation> {
    let Some(offset) = program.places[storage.index()] else {
        return match program.allocator {
            Allocator::Arena => {
                broken(Invariant::Overlap, format!("{} has no place", program.full_name(storage)))
            }
            Allocator::Direct | Allocator::Caching(_) => Ok(()),
        };
    };
    let value = program.value(storage);
    let end = offset + value.ty.bytes();
    let places = &mut pools[value.pool as usize];
    let before = places.range(..end).next_back().filter(|(_, (other_end, _))| *other_end > offset);
    if let Some((_, (_, other))) = before {
        let detail = format!("{} lies over {}", program.full_name(storage), program.full_name(*other));
        return broken(Invariant::Overlap, detail);
    }
    if end > program.arenas[value.pool as usize] {
        return broken(Invariant::Overlap, format!("{} lies past the arena", program.full_name(storage)));
    }
    places.insert(offset, (end, storage));
    Ok(())
}
