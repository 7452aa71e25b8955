//! Which storages are freed later than they have to be.

use compile::{Action, Instruction, Program};
use device::Queue;
use ops::ValueId;

/// When each storage was used last.
pub(super) struct Uses {
    /// Launches and copies so far.
    operations: u64,
    /// By storage: the operation that used it last.
    last: Vec<u64>,
    /// By storage: whether the copy queue reads it.
    leaves: Vec<bool>,
}

impl Uses {
    pub(super) fn new(program: &Program) -> Uses {
        let values = program.values.len();
        Uses { operations: 0, last: vec![0; values], leaves: vec![false; values] }
    }

    /// Takes note of an instruction. Whether it frees something since whose last use something else has run, by choice: what
    /// other queues use last is held until they are done with it, and what leaves for as long as its copy takes.
    pub(super) fn frees_late(&mut self, program: &Program, instruction: &Instruction) -> bool {
        let storage = |id: ValueId| program.storage(id).index();
        match &instruction.action {
            action @ (Action::Launch { .. } | Action::Copy { .. }) => {
                self.operations += 1;
                let awaited = instruction.queue() != Queue::Compute;
                let last = if awaited { u64::MAX } else { self.operations };
                action.touches().for_each(|id| self.last[storage(id)] = last);
                if let Action::Copy { queue: Queue::Copy, from, .. } = action {
                    self.leaves[storage(*from)] = true;
                }
                false
            }
            Action::Free(freed) => self.operations > self.last[freed.index()] && !self.leaves[freed.index()],
            _ => false,
        }
    }
}
