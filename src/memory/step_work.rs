//! The work of an optimizer step, independent of the machine's speed.

use compile::{Action, Instruction, OperandTypes, Program, StepSection, StepSections, When};
use device::{Collective, Phase, Pool, Role};
use ops::{DType, ValueId};
use spec::Allocator;

/// The work of an optimizer step, recomputation included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Launches by operation, in order of first occurrence.
    pub tasks: Vec<Task>,
    /// Bytes transferred from device to host and from host to device, within a step.
    pub to_host_bytes: u64,
    pub to_device_bytes: u64,
    /// Exchanges between ranks.
    pub exchanges: Vec<Exchanged>,
    /// Bytes that every step requests from the system, such as with one request per value.
    pub asked_bytes: u64,
}

/// All exchanges of one kind in one phase of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchanged {
    pub collective: Collective,
    pub phase: Phase,
    /// Bytes that a rank sends to others in a step.
    pub sent_bytes: u64,
}

/// All launches of one operation on one device in one phase, with one operand dtype and similar load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    pub operation: &'static str,
    pub phase: Phase,
    /// `Device` or `Host`.
    pub device: Pool,
    /// Of the first operand.
    pub dtype: DType,
    /// Of one launch.
    pub load: Bottleneck,
    pub flops: u64,
    /// Minimum bytes read and written.
    pub bytes: u64,
}

/// The bottleneck of a launch and its order of magnitude (binary logarithm): the fraction of a device's rates that it
/// reaches depends on both, as caches hold small operands and large matmuls are more efficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bottleneck {
    /// Memory-bound: bytes.
    Moving(u32),
    /// Compute-bound: FLOPs.
    Computing(u32),
}

impl Bottleneck {
    /// Maximum FLOPs per byte of a memory-bound launch.
    const MAX_FLOPS_PER_BYTE: u64 = 8;

    pub fn of(flops: u64, bytes: u64) -> Bottleneck {
        match flops > bytes.saturating_mul(Bottleneck::MAX_FLOPS_PER_BYTE) {
            true => Bottleneck::Computing(flops.ilog2()),
            false => Bottleneck::Moving(bytes.max(1).ilog2()),
        }
    }

    /// The distance in powers of two, if both have the same bottleneck.
    pub fn distance(self, other: Bottleneck) -> Option<u32> {
        match (self, other) {
            (Bottleneck::Moving(a), Bottleneck::Moving(b))
            | (Bottleneck::Computing(a), Bottleneck::Computing(b)) => Some(a.abs_diff(b)),
            _ => None,
        }
    }
}

impl StepWork {
    /// The mean of the run's steps, if the lengths of samples vary.
    pub fn of(program: &Program) -> StepWork {
        let (mut work, mut types) = (StepWork::default(), OperandTypes::default());
        let StepSections { steps, sections } = program.step_sections();
        for StepSection { program, section, times } in sections {
            let mean = |figure: u64| (u128::from(figure) * u128::from(times) / u128::from(steps)) as u64;
            for instruction in &section.code {
                work.add(program, instruction, &mean, &mut types);
            }
        }
        work
    }

    /// Bytes that a rank sends to others in a step.
    pub fn sent_bytes(&self) -> u64 {
        self.exchanges.iter().map(|exchange| exchange.sent_bytes).sum()
    }

    /// Adds an instruction; `mean` gives the mean of the steps of one execution's figure.
    fn add(
        &mut self,
        program: &Program,
        instruction: &Instruction,
        mean: &dyn Fn(u64) -> u64,
        types: &mut OperandTypes,
    ) {
        match &instruction.action {
            // First-iteration instructions are not part of a typical step.
            _ if instruction.is_once() || instruction.phase == Phase::Start => {}
            Action::Launch { op, inputs, outputs, .. } => {
                let OperandTypes { inputs, outputs } = types.of(&program.values, inputs, outputs);
                let operand = inputs.first().or(outputs.first());
                let (flops, bytes) = (op.flops(inputs, outputs), op.bytes(inputs, outputs));
                let task = Task {
                    operation: op.name(),
                    phase: instruction.phase,
                    device: instruction.device,
                    dtype: operand.map_or(DType::F32, |ty| ty.dtype),
                    load: Bottleneck::of(flops, bytes),
                    flops: mean(flops),
                    bytes: mean(bytes),
                };
                self.add_task(task);
            }
            &Action::Copy { from, to, .. } => {
                let bytes = mean(carried_bytes(program, from, to));
                match program.value(to).pool.home() {
                    Pool::Device => self.to_device_bytes += bytes,
                    Pool::Host | Pool::Pinned => self.to_host_bytes += bytes,
                }
            }
            action @ &Action::Exchange { collective, .. } => {
                let bytes = program.sent_bytes(action);
                let is_last = instruction.when == When::Last;
                self.add_exchange(Exchanged {
                    collective,
                    phase: instruction.phase,
                    // Once per step, whatever the section's iterations.
                    sent_bytes: if is_last { bytes } else { mean(bytes) },
                });
            }
            &Action::Allocate(storage) if program.allocator == Allocator::Direct => {
                self.asked_bytes += mean(program.ty(storage).bytes());
            }
            // A leak replaces a deallocation, so the next step requests new memory.
            &Action::Leak(storage) if program.allocator != Allocator::Direct => {
                self.asked_bytes += mean(program.ty(storage).bytes());
            }
            _ => {}
        }
    }

    fn add_exchange(&mut self, exchange: Exchanged) {
        let key = |of: &Exchanged| (of.collective, of.phase);
        match self.exchanges.iter_mut().find(|existing| key(existing) == key(&exchange)) {
            Some(existing) => existing.sent_bytes += exchange.sent_bytes,
            None => self.exchanges.push(exchange),
        }
    }

    fn add_task(&mut self, task: Task) {
        let is_similar = |existing: &&mut Task| {
            let key = |of: &Task| (of.phase, of.device, of.dtype, of.load);
            key(existing) == key(&task) && existing.operation == task.operation
        };
        match self.tasks.iter_mut().find(is_similar) {
            Some(existing) => {
                existing.flops += task.flops;
                existing.bytes += task.bytes;
            }
            None => self.tasks.push(task),
        }
    }
}

/// Bytes of a transfer of activations, parameters or states: 0 for batches and results, unless they are copies of
/// other values.
pub fn carried_bytes(program: &Program, from: ValueId, to: ValueId) -> u64 {
    let is_input = |id| program.value(id).role == Role::Input;
    let is_copy = |id| program.original(id) != id;
    let ends = [from, to];
    if ends.into_iter().any(is_input) && !ends.into_iter().any(is_copy) {
        return 0;
    }
    program.ty(to).bytes()
}
