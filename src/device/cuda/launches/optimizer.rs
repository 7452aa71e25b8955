//! Optimizer steps, the global gradient norm and the loss scale: operations on whole buckets.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{
    Adam, DType, GlobalNorm, Lion, LossScale, Member, OptimizerStep, Rounding, Rule, Sgd, StateFormat,
    TypeError, UpdateFormat, WeightFormat,
};

use super::sizes::{BLOCK, by_dtype, optional, pointer, size_argument};
use super::tables::{TableEntry, each_table};
use super::{adafactor, muon};

/// Threads per block of the norm's partial sums.
const NORM_BLOCK: u32 = 512;
/// Elements per block of update kernels.
pub(super) const UPDATE_ELEMENTS: usize = 4096;

pub(super) fn global_norm(
    op: &GlobalNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let mut launched_blocks = 0;
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let name = by_dtype(dtype, ["norm_partials_f32", "norm_partials_bf16", "norm_partials_f16"])?;
        let buckets = op.buckets.iter().zip(inputs).filter(|(_, bucket)| bucket.ty.dtype == dtype);
        let work = buckets.flat_map(|(members, bucket)| {
            members.iter().map(move |member| TableEntry {
                blocks: member.elements().div_ceil(GlobalNorm::ELEMENTS_PER_PARTIAL),
                fields: [bucket.address + member.offset as u64 * dtype.bytes(), member.elements() as u64],
            })
        });
        each_table(work, |blocks, table| {
            let sums = partials + launched_blocks as u64 * size_of::<f64>() as u64;
            launched_blocks += blocks as usize;
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
            size_argument(launched_blocks)?,
        ],
    )
}

/// Enqueues an optimizer step. States are updated in place; so are parameters, unless they have a master copy.
pub(super) fn update(
    op: &OptimizerStep,
    inputs: &[Operand],
    outputs: &[Operand],
    workspace: (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let bucket = Bucket::of(op, inputs, outputs);
    match &op.rule {
        Rule::Adafactor(rule) => {
            let arguments = bucket.arguments(adafactor::constants(rule))?;
            adafactor::update(op, outputs[0].ty, &arguments, workspace.0, launcher)
        }
        Rule::Muon(rule) => muon::update(op, rule, &bucket, workspace, launcher),
        Rule::Adam(_) | Rule::Lion(_) | Rule::Sgd(_) => {
            let (kernel, constants) = kernel(&op.rule, op.format.states);
            each_element(&op.gradients.members, kernel, &bucket.arguments(constants)?, launcher)
        }
    }
}

/// The operands of update kernels.
#[derive(Clone)]
pub(super) struct Bucket {
    parameters: Operand,
    gradients: Operand,
    states: Vec<Operand>,
    master: Option<Operand>,
    /// The address of the rule's numbers.
    numbers: u64,
    norm: Option<u64>,
    scaling: Option<u64>,
    clip_norm: Option<f32>,
    format: UpdateFormat,
}

impl Bucket {
    fn of(op: &OptimizerStep, inputs: &[Operand], outputs: &[Operand]) -> Bucket {
        let OptimizerStep { gradients, format, numbers_at, rule: _ } = op;
        let numbers = op.numbers_input();
        let (states, master) = outputs[1..].split_at(op.states().len());
        Bucket {
            parameters: outputs[0],
            gradients: inputs[op.gradients_input()],
            states: states.to_vec(),
            master: master.first().copied(),
            numbers: inputs[numbers].address + DType::F32.bytes_of(*numbers_at),
            norm: gradients.need_norm().then(|| inputs[numbers + 1].address),
            scaling: gradients.scaled.then(|| inputs[numbers + 2].address),
            clip_norm: gradients.clip_norm,
            format: *format,
        }
    }

    /// The same with temporary f32 parameters.
    pub(super) fn with_parameters(&self, parameters: Operand) -> Bucket {
        let format = UpdateFormat { weights: WeightFormat::default(), ..self.format };
        Bucket { parameters, master: None, format, ..self.clone() }
    }

    /// The same with other gradients, for a rule without states.
    pub(super) fn with_gradients(&self, gradients: Operand) -> Bucket {
        Bucket { gradients, states: Vec::new(), ..self.clone() }
    }

    /// The common first arguments of update kernels: parameters, gradients, states and numbers; master copy, norm and
    /// loss scale, or null; the clipping norm, the rule's constants, and the types.
    pub(super) fn arguments(&self, constants: Argument) -> Result<Vec<Argument>, DeviceError> {
        let Bucket { parameters, gradients, .. } = self;
        let mut arguments: Vec<Argument> =
            [parameters, gradients].into_iter().chain(&self.states).map(pointer).collect();
        arguments.push(Argument::Pointer(self.numbers));
        let master = self.master.map(|master| master.address);
        arguments.extend([master, self.norm, self.scaling].map(optional));
        // Infinity disables clipping.
        arguments.push(Argument::F32(self.clip_norm.unwrap_or(f32::INFINITY)));
        arguments.push(constants);
        arguments.push(formats(self.format, [parameters.ty.dtype, gradients.ty.dtype])?);
        Ok(arguments)
    }
}

/// Launches an elementwise update kernel over the members.
pub(super) fn each_element(
    members: &[Member],
    kernel: &'static str,
    arguments: &[Argument],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let work = members.iter().map(|member| TableEntry {
        blocks: member.elements().div_ceil(UPDATE_ELEMENTS),
        fields: [
            member.offset as u64,
            member.elements() as u64,
            u64::from(member.decay),
            u64::from(member.site),
        ],
    });
    each_table(work, |blocks, table| {
        let arguments: Vec<Argument> = arguments.iter().cloned().chain([table]).collect();
        launcher.kernel(kernel, [blocks, 1, 1], BLOCK, 0, &arguments)
    })
}

/// A rule's kernels as named in `optimizers.cuh`: with moments in f32, in bf16, in stochastically rounded bf16, and
/// quantized.
macro_rules! kernels {
    ($name:literal) => {
        [$name, concat!($name, "_bf16"), concat!($name, "_bf16_random"), concat!($name, "_quantized")]
    };
}

pub(super) use kernels;

/// The kernel of a rule, and its constants as a struct. `1 - beta` is computed in f64.
fn kernel(rule: &Rule, format: StateFormat) -> (&'static str, Argument) {
    let (kernels, constants) = match rule {
        Rule::Adafactor(_) | Rule::Muon(_) => unreachable!("these rules are not elementwise"),
        Rule::Adam(Adam { beta1, beta2, epsilon, weight_decay, decoupled }) => {
            let ([beta1, added1], [beta2, added2]) = (average_weights(*beta1), average_weights(*beta2));
            let decoupled = f32::from(u8::from(*decoupled));
            (kernels!("adam"), vec![beta1, added1, beta2, added2, *epsilon, *weight_decay, decoupled])
        }
        Rule::Lion(Lion { beta1, beta2, weight_decay }) => (
            kernels!("lion"),
            [&average_weights(*beta1)[..], &average_weights(*beta2), &[*weight_decay]].concat(),
        ),
        Rule::Sgd(Sgd { momentum: 0.0, weight_decay, .. }) => (["sgd"; 4], vec![*weight_decay]),
        Rule::Sgd(Sgd { momentum, nesterov, weight_decay }) => {
            (kernels!("sgd_momentum"), vec![*momentum, f32::from(u8::from(*nesterov)), *weight_decay])
        }
    };
    (in_format(kernels, format), words(&constants))
}

/// Selects the kernel for a state format.
pub(super) fn in_format(
    [f32, bf16, random, quantized]: [&'static str; 4],
    format: StateFormat,
) -> &'static str {
    match format {
        StateFormat::F32 => f32,
        StateFormat::Bf16(Rounding::Nearest) => bf16,
        StateFormat::Bf16(Rounding::Stochastic { .. }) => random,
        StateFormat::Quantized => quantized,
    }
}

/// The weights of a moving average: `beta` and `1 - beta`.
fn average_weights(beta: f64) -> [f32; 2] {
    [beta as f32, (1.0 - beta) as f32]
}

/// A struct of f32 numbers; its last word may be half empty.
pub(super) fn words(numbers: &[f32]) -> Argument {
    let bits = |number: Option<&f32>| u64::from(number.map_or(0, |number| number.to_bits()));
    Argument::Words(numbers.chunks(2).map(|pair| bits(pair.first()) | bits(pair.get(1)) << 32).collect())
}

/// The struct `Formats` of `weights.cuh`, for the types of parameters and gradients.
///
/// # Errors
/// A type is not a floating-point type.
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
            DType::I32 | DType::U16 | DType::U8 | DType::U4 => {
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

/// Updates the scale and its counts in place.
pub(super) fn loss_scale(
    op: &LossScale,
    inputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let numbers = [op.backoff, op.growth, op.interval].map(Argument::F32);
    let arguments: Vec<Argument> = inputs.iter().map(pointer).chain(numbers).collect();
    launcher.kernel("loss_scale", [1, 1, 1], 1, 0, &arguments)
}
