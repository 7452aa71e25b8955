//! What happens to whole buckets of gradients and parameters at the end of a step.

use crate::device::DeviceError;
use crate::device::cuda::launcher::{Argument, Launcher, Operand};
use crate::ops::{AdamW, GlobalNorm, LossScale, Update as _};

use super::sizes::{BLOCK, optional, pointer, size_argument};
use super::tables::{Work, each_table};

/// Threads of a block that makes a partial sum of a norm.
const NORM_BLOCK: u32 = 512;
/// Elements of a tensor that one block updates.
const UPDATE_ELEMENTS: usize = 4096;

pub(super) fn global_norm(
    op: &GlobalNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let work = op.buckets.iter().zip(inputs).flat_map(|(members, bucket)| {
        let element = bucket.ty.dtype.bytes();
        members.iter().map(move |member| Work {
            blocks: member.elements().div_ceil(GlobalNorm::ELEMENTS_PER_PARTIAL),
            fields: [bucket.address + member.offset as u64 * element, member.elements() as u64],
        })
    });
    let mut made = 0;
    each_table(work, |blocks, table| {
        let sums = partials + made as u64 * size_of::<f64>() as u64;
        made += blocks as usize;
        launcher.kernel("norm_partials", [blocks, 1, 1], NORM_BLOCK, 0, &[Argument::Pointer(sums), table])
    })?;
    launcher.kernel(
        "norm_of_partials",
        [1, 1, 1],
        1024,
        0,
        &[
            pointer(&outputs[0]),
            Argument::Pointer(partials),
            optional(op.scaled.then(|| inputs[op.buckets.len()].address)),
            size_argument(made)?,
        ],
    )
}

/// Parameters and moments are updated in place.
pub(super) fn adamw(op: &AdamW, inputs: &[Operand], launcher: &mut Launcher) -> Result<(), DeviceError> {
    let [parameters, gradients, first, second] = [0, 1, 2, 3].map(|index| pointer(&inputs[index]));
    let at = op.numbers_input();
    let numbers = pointer(&inputs[at]);
    let norm = optional(op.gradients.need_norm().then(|| inputs[at + 1].address));
    let scale = optional(op.gradients.scaled.then(|| inputs[at + 2].address));
    let work = op.gradients.members.iter().map(|member| Work {
        blocks: member.elements().div_ceil(UPDATE_ELEMENTS),
        fields: [member.offset as u64, member.elements() as u64, u64::from(member.decay)],
    });
    each_table(work, |blocks, table| {
        let operands =
            [&parameters, &gradients, &first, &second, &numbers, &norm, &scale].map(Argument::clone);
        let arguments: Vec<Argument> = operands.into_iter().chain([constants(op), table]).collect();
        launcher.kernel("adamw", [blocks, 1, 1], BLOCK, 0, &arguments)
    })
}

/// The struct `AdamW` of `optimizer.cu`. What the moments take on is made in f64, as what they keep is.
fn constants(op: &AdamW) -> Argument {
    let numbers = [
        op.beta1 as f32,
        (1.0 - op.beta1) as f32,
        op.beta2 as f32,
        (1.0 - op.beta2) as f32,
        op.epsilon,
        op.weight_decay,
        op.gradients.clip_norm.unwrap_or(f32::INFINITY),
        0.0,
    ];
    let word = |pair: &[f32; 2]| u64::from(pair[0].to_bits()) | u64::from(pair[1].to_bits()) << 32;
    Argument::Words(numbers.as_chunks().0.iter().map(word).collect())
}

/// Scale and counts are updated in place.
pub(super) fn loss_scale(
    op: &LossScale,
    inputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let numbers = [op.backoff, op.growth, op.interval].map(Argument::F32);
    let arguments: Vec<Argument> = inputs.iter().map(pointer).chain(numbers).collect();
    launcher.kernel("loss_scale", [1, 1, 1], 1, 0, &arguments)
}
