//! Values that are live at an instruction, for diagnosing out-of-memory errors.

use super::allocator::rounded;
use compile::{Action, Program};
use device::{Pool, Position, Role, Target};
use ops::ValueId;

/// A live storage, with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveValue {
    pub name: String,
    /// Its scope.
    pub scope: String,
    pub role: Role,
    /// Allocated bytes.
    pub bytes: u64,
}

/// The storages of a pool that are live after an instruction, largest first.
pub fn live_at(program: &Program, target: &Target, pool: Pool, position: Position) -> Vec<LiveValue> {
    let section = &program.sections[position.section as usize];
    let code = &section.code[..=position.instruction as usize];
    // A first-iteration instruction runs before lazy initialisation is complete.
    let first_iteration = code.last().is_some_and(|instruction| instruction.is_once());
    let not_initialised: Vec<ValueId> = match first_iteration {
        true => program.sections[position.section as usize..]
            .iter()
            .flat_map(|s| s.lazily_initialised.clone())
            .collect(),
        false => Vec::new(),
    };
    let mut live: Vec<ValueId> = section.live_in.clone();
    live.retain(|storage| !not_initialised.contains(storage));
    for instruction in code.iter().filter(|instruction| first_iteration || !instruction.is_once()) {
        match instruction.action {
            Action::Allocate(storage) => live.push(storage),
            Action::Free(storage) => live.retain(|&other| other != storage),
            Action::Collect { value, .. } => live.retain(|&other| other != program.storage(value)),
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
