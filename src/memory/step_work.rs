//! What an optimizer step has a machine do, however fast that is.

use compile::{Action, Instruction, Program, Types};
use device::{Phase, Pool, Role};
use ops::{DType, ValueId};
use spec::Allocator;

/// An optimizer step's work, with what is computed again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepWork {
    /// What processors compute, in the order in which it first comes.
    pub tasks: Vec<Task>,
    /// Bytes that leave the device for the host's work or until they are needed again, and bytes that come back.
    pub to_host_bytes: u64,
    pub to_device_bytes: u64,
    /// Bytes that are asked of the system anew in every step, as where each value is a request of its own.
    pub asked_bytes: u64,
}

/// All that one operation does on one processor, with operands of one type, where launches do about as much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    pub operation: &'static str,
    /// Whose processor it is: the device's or the host's.
    pub home: Pool,
    /// Of the first operand.
    pub dtype: DType,
    /// Of one launch.
    pub load: Load,
    pub flops: u64,
    /// Read and written, at the least.
    pub bytes: u64,
}

/// What keeps a launch busy, and the order of magnitude of that (the binary logarithm): how close it comes to a device's rates
/// depends on both, for caches hold what is small, and large products are the more efficient ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Load {
    /// Bytes, with few FLOPs to each.
    Moving(u32),
    /// FLOPs.
    Computing(u32),
}

impl Load {
    /// FLOPs that come with a byte in what moves bytes and little else.
    const FEW: u64 = 8;

    pub fn of(flops: u64, bytes: u64) -> Load {
        match flops > bytes.saturating_mul(Load::FEW) {
            true => Load::Computing(flops.ilog2()),
            false => Load::Moving(bytes.max(1).ilog2()),
        }
    }

    /// How many times twice as much, if both are of one kind.
    pub fn distance(self, other: Load) -> Option<u32> {
        match (self, other) {
            (Load::Moving(a), Load::Moving(b)) | (Load::Computing(a), Load::Computing(b)) => {
                Some(a.abs_diff(b))
            }
            _ => None,
        }
    }
}

impl StepWork {
    pub fn of(program: &Program) -> StepWork {
        let (mut work, mut types) = (StepWork::default(), Types::default());
        for section in program.step() {
            for instruction in &section.code {
                work.add(program, instruction, section.times as u64, &mut types);
            }
        }
        work
    }

    pub fn flops(&self) -> u64 {
        self.tasks.iter().map(|task| task.flops).sum()
    }

    fn add(&mut self, program: &Program, instruction: &Instruction, times: u64, types: &mut Types) {
        match &instruction.action {
            // What is done once, in the first step, is part of none.
            _ if instruction.once || instruction.phase == Phase::Start => {}
            Action::Launch { op, inputs, outputs, .. } => {
                let Types { inputs, outputs } = types.of(&program.values, inputs, outputs);
                let operand = inputs.first().or(outputs.first());
                let (flops, bytes) = (op.flops(inputs, outputs), op.bytes(inputs, outputs));
                let task = Task {
                    operation: op.name(),
                    home: instruction.home,
                    dtype: operand.map_or(DType::F32, |ty| ty.dtype),
                    load: Load::of(flops, bytes),
                    flops: times * flops,
                    bytes: times * bytes,
                };
                self.compute(task);
            }
            &Action::Copy { from, to, .. } => {
                let bytes = times * carried_bytes(program, from, to);
                match program.value(to).pool.home() {
                    Pool::Device => self.to_device_bytes += bytes,
                    Pool::Host | Pool::Pinned => self.to_host_bytes += bytes,
                }
            }
            &Action::Allocate(storage) if program.allocator == Allocator::Direct => {
                self.asked_bytes += times * program.ty(storage).bytes();
            }
            // In the place of freeing it.
            &Action::Leak(storage) if program.allocator != Allocator::Direct => {
                self.asked_bytes += times * program.ty(storage).bytes();
            }
            _ => {}
        }
    }

    fn compute(&mut self, task: Task) {
        let is_alike = |known: &&mut Task| {
            let kinds = |of: &Task| (of.home, of.dtype, of.load);
            kinds(known) == kinds(&task) && known.operation == task.operation
        };
        match self.tasks.iter_mut().find(is_alike) {
            Some(known) => {
                known.flops += task.flops;
                known.bytes += task.bytes;
            }
            None => self.tasks.push(task),
        }
    }
}

/// Bytes that a copy carries from one home to the other: none of batches, nor of what the host is told of a step, unless they
/// stand for something else in another pool.
pub fn carried_bytes(program: &Program, from: ValueId, to: ValueId) -> u64 {
    let is_input = |id| program.value(id).role == Role::Input;
    let stands_for_another = |id| program.stands_for(id) != id;
    let ends = [from, to];
    if ends.into_iter().any(is_input) && !ends.into_iter().any(stands_for_another) {
        return 0;
    }
    program.ty(to).bytes()
}
