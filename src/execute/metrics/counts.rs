//! Counts of a strategy's effects.

use super::updated_by::UpdatedBy;
use compile::{Action, Instruction, Program, SectionKind};
use device::{Phase, Pool};
use memory::{CacheStats, carried_bytes};
use ops::{DType, Op, StateFormat, UpdateFormat, ValueId, WeightFormat};

/// Counted during execution, never copied from the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub(crate) steps: u64,
    pub(crate) micro_batches: u64,
    /// FLOPs, without evaluations.
    pub flops: u64,
    pub(crate) recompute_flops: u64,
    /// Recomputed operations, without casts and dequantization.
    pub(crate) recomputed_operations: u64,
    /// Requests to the backing store, without those of evaluations and of first iterations.
    pub(crate) requests: u64,
    pub(crate) requests_in_evaluation: u64,
    /// Requests of instructions that run in the first iteration only. They are not part of any step.
    pub(crate) requests_in_first_iteration: u64,
    /// Work of a caching allocator: without evaluations, and in evaluations.
    pub(crate) cache: CacheStats,
    pub(crate) cache_in_evaluation: CacheStats,
    /// Parameters, gradients and optimizer states that were initialised lazily, at their first use.
    pub(crate) lazily_initialised: u64,
    /// Elements of the parameters that the optimizer updated.
    pub(crate) trained_parameters: u64,
    /// The same, by update rule.
    pub(crate) updated: UpdatedBy,
    /// Buckets whose gradients were applied before the backward pass was over.
    pub(crate) updates_in_backward: u64,
    /// FLOPs computed on the host.
    pub(crate) host_flops: u64,
    /// Bytes of parameters copied to their pool from the pool in which they were initialised.
    pub(crate) bytes_at_start: u64,
    /// Bytes transferred between device and host, without those of start-up, evaluations and batches.
    pub(crate) bytes_to_host: u64,
    pub(crate) bytes_to_device: u64,
    /// Bytes sent to other ranks.
    pub(crate) sent_bytes: u64,
    /// Bytes of batches copied to the device, without evaluations.
    pub(crate) batch_bytes: u64,
    /// Steps whose batch was prefetched: its copy to the device was enqueued before the step began.
    pub(crate) batches_ahead: u64,
    /// Bytes of gradients zeroed at the end of steps.
    pub(crate) zeroed_bytes: u64,
    /// Tensors cast to another dtype, by a cast or fused into the operation that produced them; without evaluations.
    pub(crate) casts: u64,
    /// Bytes of parameters stored in 16 bits, at each update.
    pub(crate) parameter_bytes_in_16_bits: u64,
    /// Weights dequantized, without evaluations.
    pub(crate) dequantized: u64,
    /// Bytes of optimizer states stored in 16 bits and in 8, at each update.
    pub(crate) state_bytes_in_16_bits: u64,
    pub(crate) state_bytes_in_8_bits: u64,
    /// Elements of parameters and optimizer states rounded stochastically.
    pub(crate) random_roundings: u64,
    /// Slices of losses that are computed in more than one slice; without evaluations.
    pub(crate) loss_slices: u64,
    /// Replays of captured graphs, without evaluations.
    pub(crate) replays: u64,
    /// Steps skipped because a gradient was not finite.
    pub(crate) skipped_steps: u64,
    /// Storages freed late: another operation ran between their last use and the free.
    pub(crate) late_frees: u64,
    /// Bytes of those storages.
    pub(crate) late_freed_bytes: u64,
    /// Bytes that are never freed.
    pub(crate) leaked_bytes: u64,
    pub(crate) evaluations: u64,
    /// Forward passes of evaluations.
    pub(crate) evaluation_passes: u64,
    /// Bytes that evaluations have collected, by device.
    pub(crate) collected_bytes: [u64; Pool::HOMES.len()],
    pub(crate) late_frees_in_evaluation: u64,
}

impl Counts {
    /// Counts an instruction of a section of this kind.
    pub(crate) fn count(&mut self, program: &Program, kind: SectionKind, instruction: &Instruction) {
        if instruction.phase == Phase::Evaluation {
            return;
        }
        match &instruction.action {
            Action::Launch { .. } if instruction.is_once() => {}
            Action::Launch { op, outputs, .. } => {
                self.launch(program, instruction, op, outputs);
                let is_early = op.as_update().is_some() && kind != SectionKind::Update;
                self.updates_in_backward += u64::from(is_early);
            }
            &Action::Copy { to, .. } if instruction.phase == Phase::Start || instruction.is_once() => {
                self.bytes_at_start += program.ty(to).bytes();
            }
            &Action::Copy { from, to, .. } => self.copy(program, from, to),
            action @ Action::Exchange { .. } => self.sent_bytes += program.sent_bytes(action),
            _ => {}
        }
    }

    /// Counts a late free.
    pub(crate) fn count_late_free(&mut self, program: &Program, instruction: &Instruction) {
        let Action::Free(storage) = instruction.action else { return };
        if instruction.phase == Phase::Evaluation {
            self.late_frees_in_evaluation += 1;
        } else {
            self.late_frees += 1;
            self.late_freed_bytes += program.ty(storage).bytes();
        }
    }

    fn copy(&mut self, program: &Program, from: ValueId, to: ValueId) {
        if program.value(from).shape_source.batch_buffer().is_some() {
            self.batch_bytes += program.ty(to).bytes();
        }
        let bytes = carried_bytes(program, from, to);
        match program.value(to).pool {
            Pool::Host | Pool::Pinned => self.bytes_to_host += bytes,
            Pool::Device => self.bytes_to_device += bytes,
        }
    }

    fn launch(&mut self, program: &Program, instruction: &Instruction, op: &Op, outputs: &[ValueId]) {
        let flops = program.flops(&instruction.action);
        self.flops += flops;
        if instruction.recompute {
            self.recompute_flops += flops;
            self.recomputed_operations += u64::from(!instruction.action.is_cast() && !op.is_dequantization());
        }
        if instruction.device == Pool::Host {
            self.host_flops += flops;
        }
        self.casts += op.casts(outputs.len()) as u64;
        self.dequantized += u64::from(op.is_dequantization());
        self.loss_slices += u64::from(instruction.slice.is_some() && op.as_loss().is_some());
        if let Some(update) = op.as_update() {
            let numbers = update.gradients.members.iter().map(|member| member.elements() as u64).sum::<u64>();
            self.trained_parameters += numbers;
            self.updated.count(update, numbers);
            let in_dtype = |dtype| {
                let types = outputs[1..].iter().map(|&output| program.ty(output));
                types.filter(|ty| ty.dtype == dtype).map(|ty| ty.bytes()).sum::<u64>()
            };
            self.state_bytes_in_16_bits += in_dtype(DType::BF16);
            self.parameter_bytes_in_16_bits += match program.ty(outputs[0]) {
                ty if ty.dtype == DType::F32 => 0,
                ty => ty.bytes(),
            };
            self.state_bytes_in_8_bits += in_dtype(DType::U8);
            let UpdateFormat { states, weights } = update.format;
            if let StateFormat::Bf16(rounding) = states
                && rounding.seed().is_some()
            {
                self.random_roundings += numbers * update.states().len() as u64;
            }
            if let WeightFormat::InPlace(rounding) = weights
                && rounding.seed().is_some()
            {
                self.random_roundings += numbers;
            }
        }
        if instruction.phase == Phase::Update && op.is_zeros() {
            self.zeroed_bytes += outputs.iter().map(|&output| program.ty(output).bytes()).sum::<u64>();
        }
    }
}
