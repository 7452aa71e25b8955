//! What strategies really did.

use super::updated_by::UpdatedBy;
use compile::{Action, Instruction, Program, SectionKind};
use device::{Phase, Pool};
use memory::{CacheWork, carried_bytes};
use ops::{DType, Op, StateFormat, UpdateFormat, ValueId, WeightFormat};

/// Counted where it is done, never copied from the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub steps: u64,
    pub micro_batches: u64,
    /// Evaluations left out.
    pub flops: u64,
    pub recompute_flops: u64,
    /// Operations, but those that bring numbers to another type.
    pub computed_again: u64,
    /// Requests to the backing store, those of evaluations left out.
    pub requests: u64,
    pub requests_in_evaluation: u64,
    /// Those of what is done once, in the first step, which are part of none.
    pub requests_once: u64,
    /// What a caching allocator did, evaluations left out, and in these.
    pub cache: CacheWork,
    pub cache_in_evaluation: CacheWork,
    /// Layers' parameters, gradients and states made at their first use.
    pub made_late: u64,
    /// Numbers in the parameters that the optimizer was given gradients of.
    pub trained_parameters: u64,
    /// The same by what updated them.
    pub updated: UpdatedBy,
    /// Buckets whose gradients were applied before the backward pass was over.
    pub updates_in_backward: u64,
    /// FLOPs that the host's processor computed.
    pub host_flops: u64,
    /// Bytes copied to where parameters live from where they were made.
    pub bytes_at_start: u64,
    /// Bytes brought to the other pool for work there, or taken back from it; those of start-up and of evaluations left out.
    pub bytes_to_host: u64,
    pub bytes_to_device: u64,
    /// Bytes of batches brought to the device; those of evaluations left out.
    pub batch_bytes: u64,
    /// Steps whose batch was on its way to the device, or there, before they began.
    pub batches_ahead: u64,
    /// Bytes of gradients filled with zeros at the end of steps.
    pub zeroed_bytes: u64,
    /// Tensors put into another dtype, by an operation of their own or by the one that made them; those of evaluations
    /// left out.
    pub casts: u64,
    /// Bytes of parameters stored in 16 bits, at each update.
    pub parameter_bytes_in_16_bits: u64,
    /// Weights that were made numbers of their codes; those of evaluations left out.
    pub dequantized: u64,
    /// Bytes of optimizer states stored in 16 bits and in 8, at each update.
    pub state_bytes_in_16_bits: u64,
    pub state_bytes_in_8_bits: u64,
    /// Numbers of both rounded at random.
    pub random_roundings: u64,
    /// Slices of rows that losses were computed in, where it was more than one; those of evaluations left out.
    pub loss_slices: u64,
    /// Captured stretches done again, those of evaluations left out.
    pub replays: u64,
    /// Steps that were not taken because a gradient was not finite.
    pub skipped_steps: u64,
    /// Storages freed after something else had run since their last use.
    pub late_frees: u64,
    /// Their bytes.
    pub late_freed_bytes: u64,
    /// Bytes left behind for ever.
    pub leaked_bytes: u64,
    pub evaluations: u64,
    pub late_frees_in_evaluation: u64,
}

impl Counts {
    /// Adds what an instruction of such a section does.
    pub(super) fn count(&mut self, program: &Program, kind: SectionKind, instruction: &Instruction) {
        if instruction.phase == Phase::Evaluation {
            return;
        }
        match &instruction.action {
            Action::Launch { .. } if instruction.first_iteration => {}
            Action::Launch { op, outputs, .. } => {
                self.launch(program, instruction, op, outputs);
                let is_early = op.as_update().is_some() && kind != SectionKind::Update;
                self.updates_in_backward += u64::from(is_early);
            }
            &Action::Copy { to, .. } if instruction.phase == Phase::Start || instruction.first_iteration => {
                self.bytes_at_start += program.ty(to).bytes();
            }
            &Action::Copy { from, to, .. } => self.copy(program, from, to),
            _ => {}
        }
    }

    /// Adds a storage that is freed later than it could be.
    pub(super) fn count_late(&mut self, program: &Program, instruction: &Instruction) {
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
            self.computed_again += u64::from(!instruction.action.is_cast() && !op.is_dequantization());
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
