//! Which values are live at an instruction: what people look for when they are out of memory.

use super::allocator::rounded;
use compile::{Action, Program};
use device::{Pool, Position, Role, Target};
use ops::ValueId;

/// A storage that is live, by the name it was allocated for.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveValue {
    pub name: String,
    /// The layer that it belongs to.
    pub scope: String,
    pub role: Role,
    /// As allocated.
    pub bytes: u64,
}

/// The storages of a pool that are live after an instruction, largest first.
pub fn live_at(program: &Program, target: &Target, pool: Pool, position: Position) -> Vec<LiveValue> {
    let section = &program.sections[position.section as usize];
    let code = &section.code[..=position.instruction as usize];
    // What is done once is so while not all is there yet.
    let first_time = code.last().is_some_and(|instruction| instruction.once);
    let unmade: Vec<ValueId> = match first_time {
        true => program.sections[position.section as usize..].iter().flat_map(|s| s.made.clone()).collect(),
        false => Vec::new(),
    };
    let mut live: Vec<ValueId> = section.entry.clone();
    live.retain(|storage| !unmade.contains(storage));
    for instruction in code.iter().filter(|instruction| first_time || !instruction.once) {
        match instruction.action {
            Action::Allocate(storage) => live.push(storage),
            Action::Free(storage) => live.retain(|&other| other != storage),
            _ => {}
        }
    }
    let mut live: Vec<LiveValue> = live
        .into_iter()
        .filter(|&storage| program.value(storage).pool == pool)
        .map(|storage| LiveValue {
            name: program.full_name(storage),
            scope: program.scope(program.value(storage).scope).path.clone(),
            role: program.value(storage).role,
            bytes: rounded(program, storage, target),
        })
        .collect();
    live.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    live
}
