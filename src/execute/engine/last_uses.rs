//! Detects storages that are freed later than necessary.

use compile::{Action, Instruction, Program};
use device::Queue;
use ops::ValueId;

/// The last use of each storage.
pub(super) struct LastUses {
    /// Launches and copies so far.
    operations: u64,
    /// By storage: number of the operation that used it last.
    last: Vec<u64>,
    /// By storage: whether the copy queue has read it.
    copied_out: Vec<bool>,
}

impl LastUses {
    pub(super) fn new(program: &Program) -> LastUses {
        let values = program.values.len();
        LastUses { operations: 0, last: vec![0; values], copied_out: vec![false; values] }
    }

    /// Records an instruction. Returns whether it frees a storage late by choice: another operation has run since its
    /// last use. Storages last used by another queue, or copied out by the copy queue, must be held until that is done
    /// and do not count.
    pub(super) fn frees_late(&mut self, program: &Program, instruction: &Instruction) -> bool {
        let storage = |id: ValueId| program.storage(id).index();
        match &instruction.action {
            action @ (Action::Launch { .. } | Action::Copy { .. }) => {
                self.operations += 1;
                let is_other_queue = instruction.queue() != Queue::Compute;
                let last = if is_other_queue { u64::MAX } else { self.operations };
                action.touches().for_each(|id| self.last[storage(id)] = last);
                if let Action::Copy { queue: Queue::Copy, from, .. } = action {
                    self.copied_out[storage(*from)] = true;
                }
                false
            }
            Action::Free(freed) => {
                self.operations > self.last[freed.index()] && !self.copied_out[freed.index()]
            }
            _ => false,
        }
    }
}
