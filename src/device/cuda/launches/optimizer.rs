//! What happens to whole buckets of gradients and parameters at the end of a step.

use crate::device::DeviceError;
use crate::device::cuda::launcher::{Argument, Launcher, Operand};
use crate::ops::{
    AdamW, DType, GlobalNorm, LossScale, Rounding, Sgd, StateFormat, TypeError, Update, UpdateFormat,
    WeightFormat,
};

use super::sizes::{BLOCK, by_dtype, optional, pointer, size_argument};
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
    let mut made = 0;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let name = by_dtype(dtype, ["norm_partials_f32", "norm_partials_bf16", "norm_partials_f16"])?;
        let buckets = op.buckets.iter().zip(inputs).filter(|(_, bucket)| bucket.ty.dtype == dtype);
        let work = buckets.flat_map(|(members, bucket)| {
            members.iter().map(move |member| Work {
                blocks: member.elements().div_ceil(GlobalNorm::ELEMENTS_PER_PARTIAL),
                fields: [bucket.address + member.offset as u64 * dtype.bytes(), member.elements() as u64],
            })
        });
        each_table(work, |blocks, table| {
            let sums = partials + made as u64 * size_of::<f64>() as u64;
            made += blocks as usize;
            launcher.kernel(name, [blocks, 1, 1], NORM_BLOCK, 0, &[Argument::Pointer(sums), table])
        })?;
    }
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

/// Enqueues an update, whose states are updated in place, as parameters are unless they have a copy: parameters, its other
/// inputs, null for a copy, a norm and a loss scale that it has not, its constants, and the members of the bucket.
fn update(
    kernel: &'static str,
    update: &impl Update,
    (inputs, outputs): (&[Operand], &[Operand]),
    constants: &Argument,
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let gradients = update.gradients();
    let numbers = update.numbers_input();
    let (parameters, of_gradients) = (&outputs[0], &inputs[update.gradients_input()]);
    let (states, master) = outputs[1..].split_at(update.states().len());
    let mut operands: Vec<Argument> =
        [parameters, of_gradients].into_iter().chain(states).map(pointer).collect();
    operands.push(pointer(&inputs[numbers]));
    operands.push(optional(master.first().map(|master| master.address)));
    operands.push(optional(gradients.need_norm().then(|| inputs[numbers + 1].address)));
    operands.push(optional(gradients.scaled.then(|| inputs[numbers + 2].address)));
    operands.push(constants.clone());
    operands.push(formats(update.format(), [parameters, of_gradients].map(|operand| operand.ty.dtype))?);
    let work = gradients.members.iter().map(|member| Work {
        blocks: member.elements().div_ceil(UPDATE_ELEMENTS),
        fields: [
            member.offset as u64,
            member.elements() as u64,
            u64::from(member.decay),
            u64::from(member.site),
        ],
    });
    each_table(work, |blocks, table| {
        let arguments: Vec<Argument> = operands.iter().cloned().chain([table]).collect();
        launcher.kernel(kernel, [blocks, 1, 1], BLOCK, 0, &arguments)
    })
}

/// The struct `Formats` of `weights.cuh`, for parameters and gradients of these types.
///
/// # Errors
/// Types that are not of numbers.
fn formats(format: UpdateFormat, dtypes: [DType; 2]) -> Result<Argument, DeviceError> {
    let UpdateFormat { states, weights } = format;
    let states_seed = match states {
        StateFormat::Bf16(rounding) => rounding.seed(),
        StateFormat::F32 | StateFormat::Quantized => None,
    };
    let weights_seed = match weights {
        WeightFormat::InPlace(rounding) => rounding.seed(),
        WeightFormat::Master(_) => None,
    };
    let mut numbers = [0; 2];
    for (number, dtype) in numbers.iter_mut().zip(dtypes) {
        *number = match dtype {
            DType::F32 => 0,
            DType::BF16 => 1,
            DType::F16 => 2,
            DType::I32 | DType::U8 | DType::U4 => {
                let problem = format!("has no kernel for {dtype}");
                return Err(TypeError { operation: "update", problem }.into());
            }
        };
    }
    let [parameters, gradients] = numbers;
    Ok(Argument::Words(vec![
        states_seed.unwrap_or(0),
        weights_seed.unwrap_or(0),
        parameters | gradients << 32,
        u64::from(weights_seed.is_some()),
    ]))
}

/// Constants of a kernel, as many numbers as fill words.
fn constants<const N: usize>(numbers: [f32; N]) -> Argument {
    let word = |pair: &[f32; 2]| u64::from(pair[0].to_bits()) | u64::from(pair[1].to_bits()) << 32;
    Argument::Words(numbers.as_chunks().0.iter().map(word).collect())
}

/// The kernel for states in f32, in bf16, in bf16 rounded at random, and quantized.
fn by_format(format: StateFormat, [f32, bf16, random, quantized]: [&'static str; 4]) -> &'static str {
    match format {
        StateFormat::F32 => f32,
        StateFormat::Bf16(Rounding::Nearest) => bf16,
        StateFormat::Bf16(Rounding::Stochastic { .. }) => random,
        StateFormat::Quantized => quantized,
    }
}

/// What gradients are clipped to; infinite where they are not.
fn clip_norm(update: &impl Update) -> f32 {
    update.gradients().clip_norm.unwrap_or(f32::INFINITY)
}

/// With the struct `AdamW` of `optimizer.cu`. What the moments take on is made in f64, as what they keep is.
pub(super) fn adamw(
    op: &AdamW,
    operands: (&[Operand], &[Operand]),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let constants = constants([
        op.beta1 as f32,
        (1.0 - op.beta1) as f32,
        op.beta2 as f32,
        (1.0 - op.beta2) as f32,
        op.epsilon,
        op.weight_decay,
        clip_norm(op),
        0.0,
    ]);
    let kernel = by_format(op.format.states, ["adamw", "adamw_bf16", "adamw_bf16_random", "adamw_quantized"]);
    update(kernel, op, operands, &constants, launcher)
}

/// With the struct `Sgd` of `optimizer.cu`.
pub(super) fn sgd(
    op: &Sgd,
    operands: (&[Operand], &[Operand]),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let nesterov = if op.nesterov { 1.0 } else { 0.0 };
    let constants = constants([op.momentum, nesterov, op.weight_decay, clip_norm(op)]);
    let with_momentum =
        ["sgd_momentum", "sgd_momentum_bf16", "sgd_momentum_bf16_random", "sgd_momentum_quantized"];
    let kernel = if op.momentum == 0.0 { "sgd" } else { by_format(op.format.states, with_momentum) };
    update(kernel, op, operands, &constants, launcher)
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
