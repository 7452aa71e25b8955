//! What strategies really did.

use crate::compile::{Action, Instruction, Program, Value};
use crate::device::{Phase, Pool, Role};
use crate::ops::{Op, ValueId};

/// Counted where it is done, never copied from the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub micro_batches: u64,
    /// Evaluations left out.
    pub flops: u64,
    pub recompute_flops: u64,
    /// Requests to the backing store, those of evaluations left out.
    pub requests: u64,
    pub requests_in_evaluation: u64,
    /// Bytes that left the device until they are needed again, and that came back; those of evaluations left out.
    pub offloaded_bytes: u64,
    pub fetched_bytes: u64,
    /// Bytes of gradients filled with zeros at the end of steps.
    pub zeroed_bytes: u64,
    /// Tensors put into another dtype, by an operation of their own or by the one that made them; those of evaluations
    /// left out.
    pub casts: u64,
    /// Slices of rows that losses were computed in, where it was more than one; those of evaluations left out.
    pub loss_slices: u64,
    /// Captured stretches done again, those of evaluations left out.
    pub replays: u64,
    /// Steps that were not taken because a gradient was not finite.
    pub skipped_steps: u64,
    /// Storages freed after something else had run since their last use.
    pub late_frees: u64,
    pub evaluations: u64,
    pub late_frees_in_evaluation: u64,
}

impl Counts {
    /// Adds what an instruction does.
    pub(super) fn count(&mut self, program: &Program, instruction: &Instruction) {
        if instruction.phase == Phase::Evaluation {
            return;
        }
        match &instruction.action {
            Action::Launch { op, outputs, .. } => self.count_launch(program, instruction, op, outputs),
            &Action::Copy { from, to, .. } => self.count_copy(program.value(from), program.value(to)),
            _ => {}
        }
    }

    fn count_copy(&mut self, from: &Value, to: &Value) {
        // Batches, and what the host is told of a step.
        if from.role == Role::Input || to.role == Role::Input {
            return;
        }
        match to.pool {
            Pool::Host => self.offloaded_bytes += to.ty.bytes(),
            Pool::Device => self.fetched_bytes += to.ty.bytes(),
        }
    }

    fn count_launch(&mut self, program: &Program, instruction: &Instruction, op: &Op, outputs: &[ValueId]) {
        let flops = program.flops(&instruction.action);
        self.flops += flops;
        if instruction.recompute {
            self.recompute_flops += flops;
        }
        self.casts += op.casts(outputs.len()) as u64;
        self.loss_slices += u64::from(instruction.slice.is_some() && op.as_loss().is_some());
        if instruction.phase == Phase::Update && op.is_zeros() {
            self.zeroed_bytes += outputs.iter().map(|&output| program.ty(output).bytes()).sum::<u64>();
        }
    }
}
