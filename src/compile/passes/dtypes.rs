//! Assigns dtypes: weights are cast to the dtype of matmuls once per section that uses them, and fp16 losses are
//! scaled.

use std::collections::HashMap;

use super::Draft;
use super::storage::{self, StorageDecoders};
use crate::ir::{
    Action, Instruction, LossScaling, Program, Section, SectionKind, ShapeSource, Stage, SubRange, Value,
    Variant,
};
use device::{DeviceKind, Phase, Pool, Role, Target};
use graph::{Graph, Graphs, ValueKind};
use ops::{Arithmetic, Cast, DType, Fill, Loss, Op, Operand, SCALE, STEP_COUNTS_LEN, TensorType, ValueId};
use spec::{LossScale, Precision, RunConfig, StorageDtype, Strategy};

/// The dtype of each class of values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dtypes {
    pub(crate) parameters: DType,
    pub(crate) gradients: DType,
    /// Accumulators: residual streams, and the values that are added to them.
    accumulators: DType,
    /// Operands of matmuls.
    matrices: DType,
}

impl Dtypes {
    pub(crate) fn of(config: &RunConfig) -> Dtypes {
        let Strategy { params, gradient_dtype, residual, precision, .. } = config.strategy;
        let [parameters, gradients, accumulators] =
            [params, gradient_dtype, residual].map(StorageDtype::dtype);
        Dtypes { parameters, gradients, accumulators, matrices: precision.dtype() }
    }

    /// The arithmetic of matmuls on the target.
    pub(crate) fn arithmetic(config: &RunConfig, target: &Target) -> Arithmetic {
        let Dtypes { matrices, accumulators, .. } = Dtypes::of(config);
        // Only GPUs have TF32 units.
        let tf32 = config.strategy.precision == Precision::Tf32 && target.kind == DeviceKind::Cuda;
        Arithmetic { matrices, accumulators, tf32 }
    }

    /// The dtype that an operation requires of an operand, if it requires one.
    fn required(&self, operand: Operand) -> Option<DType> {
        match operand {
            Operand::Matrix => Some(self.matrices),
            Operand::Accumulator => Some(self.accumulators),
            Operand::Full => Some(DType::F32),
            Operand::Any => None,
        }
    }

    /// By value of the graph: the dtype that all operations require of it, if they agree on one.
    fn agreed(&self, graph: &Graph) -> Vec<Option<DType>> {
        let mut agreed: Vec<Option<Option<DType>>> = vec![None; graph.values.len()];
        for node in &graph.nodes {
            for (operand, &input) in node.inputs.iter().enumerate() {
                let required = self.required(node.op.operand(operand));
                let dtype = agreed[input].get_or_insert(required);
                *dtype = dtype.filter(|dtype| Some(*dtype) == required);
            }
        }
        agreed.into_iter().map(Option::flatten).collect()
    }

    /// By parameter and buffer: the dtype narrower than that of parameters in which all operations read it, if there is one.
    /// In evaluations, other operations read some: without dropout, a bias is added with the residual stream.
    pub(crate) fn narrower(&self, graphs: &Graphs) -> Vec<Option<DType>> {
        let is_narrower = |dtype: &DType| dtype.bits() < self.parameters.bits();
        let of_parameters = |graph: &Graph| -> Vec<Option<DType>> {
            let values = graph.values.iter().zip(self.agreed(graph));
            values
                .filter(|(value, _)| {
                    matches!(value.kind, ValueKind::Parameter { .. } | ValueKind::Buffer { .. })
                })
                .map(|(_, agreed)| agreed.filter(is_narrower))
                .collect()
        };
        let mut narrower = of_parameters(&graphs.full);
        if let Some(evaluated) = &graphs.evaluated {
            for (dtype, evaluated) in narrower.iter_mut().zip(of_parameters(&evaluated.full)) {
                *dtype = dtype.filter(|_| *dtype == evaluated);
            }
        }
        narrower
    }
}

pub(super) fn assign(draft: &mut Draft) {
    let dtypes = Dtypes::of(draft.config);
    let arithmetic = Dtypes::arithmetic(draft.config, draft.target);
    let program = &mut draft.program;
    let decoders = storage::assign_formats(program);
    for index in 0..program.sections.len() {
        let code = std::mem::take(&mut program.sections[index].code);
        program.sections[index].code = Casting::new(program, &decoders, dtypes, arithmetic).section(code);
    }
    if let Some(scale) = draft.config.strategy.loss_scale.filter(|_| program.trains()) {
        add_loss_scale(program, scale);
    }
    program.stage = Stage::Typed;
}

/// Inserts the casts of one section's forward pass.
struct Casting<'a> {
    program: &'a mut Program,
    decoders: &'a StorageDecoders,
    dtypes: Dtypes,
    arithmetic: Arithmetic,
    /// Casts that the section has, by value and dtype.
    cast: HashMap<(ValueId, DType), ValueId>,
}

impl<'a> Casting<'a> {
    fn new(
        program: &'a mut Program,
        decoders: &'a StorageDecoders,
        dtypes: Dtypes,
        arithmetic: Arithmetic,
    ) -> Casting<'a> {
        Casting { program, decoders, dtypes, arithmetic, cast: HashMap::new() }
    }

    fn section(&mut self, code: Vec<Instruction>) -> Vec<Instruction> {
        let mut result = Vec::with_capacity(code.len() * 2);
        for mut instruction in code {
            if let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action {
                op.set_arithmetic(self.arithmetic);
                inputs.iter().for_each(|&input| self.program.follow_parent(input));
                let casts = self.cast(op, inputs).into_iter();
                let (scope, phase) = (instruction.scope, instruction.phase);
                result.extend(casts.map(|action| Instruction::new(action, scope, phase)));
                let types = op.outputs(&self.program.types(inputs));
                let types = types.unwrap_or_else(|error| panic!("the model is wrong: {error}"));
                for (&output, ty) in outputs.iter().zip(types) {
                    self.program.set_dtype(output, ty.dtype);
                }
            }
            result.push(instruction);
        }
        result
    }

    /// Replaces inputs whose dtype differs from the one that the operation requires with casts. Returns the missing
    /// casts: one launch per dtype for all parameters, one launch for each activation.
    fn cast(&mut self, op: &Op, inputs: &mut [ValueId]) -> Vec<Action> {
        let launch = |to, inputs, outputs| Action::Launch {
            op: Op::Cast(Cast { to }),
            inputs,
            outputs,
            workspace: None,
        };
        let mut parameters: Vec<(DType, Vec<ValueId>, Vec<ValueId>)> = Vec::new();
        let mut actions = Vec::new();
        for (index, input) in inputs.iter_mut().enumerate() {
            let Some(dtype) = self.dtypes.required(op.operand(index)) else { continue };
            let current = self.program.ty(*input).dtype;
            let is_number = current.is_float() || self.decoders.contains(*input);
            if current == dtype || !is_number {
                continue;
            }
            // The parent of a slice of rows is cast as a whole, once.
            let rows = self.program.value(*input).view.filter(|view| matches!(view.range, SubRange::Rows(_)));
            let of = rows.map_or(*input, |view| view.of);
            let cast = self.cast.get(&(of, dtype)).copied().unwrap_or_else(|| {
                let value = self.program.value(of).clone();
                let ty = TensorType { dtype, ..value.ty };
                let is_parameter = value.role == Role::Parameter;
                let role = if is_parameter { Role::Cast } else { value.role };
                let cast = self.program.add_like(Value { variant: Variant::Cast, ty, role, ..value });
                self.cast.insert((of, dtype), cast);
                if let Some(decode) = self.decoders.decode(of, dtype, cast) {
                    actions.push(decode);
                } else if !is_parameter {
                    actions.push(launch(dtype, vec![of], vec![cast]));
                } else if let Some((_, originals, casts)) =
                    parameters.iter_mut().find(|(to, ..)| *to == dtype)
                {
                    originals.push(of);
                    casts.push(cast);
                } else {
                    parameters.push((dtype, vec![of], vec![cast]));
                }
                cast
            });
            *input = match rows {
                Some(view) => self.program.add_view_like(*input, view.range, cast),
                None => cast,
            };
        }
        actions.extend(parameters.into_iter().map(|(dtype, of, casts)| launch(dtype, of, casts)));
        actions
    }
}

/// Adds the loss scale and its counts, which live from the start, and multiplies the loss's gradient by the scale.
fn add_loss_scale(program: &mut Program, scale: LossScale) {
    let scope = program.add_scope("loss_scale");
    let counts = TensorType::f32(&[STEP_COUNTS_LEN]);
    let mut state =
        |name, ty, role, pool| program.add_value(name, scope, (ShapeSource::Fixed, ty), role, pool);
    let mut pair =
        |role, pool| [("scale", SCALE), ("counts", counts)].map(|(name, ty)| state(name, ty, role, pool));
    let [value, counts] = pair(Role::Optimizer, Pool::Device);
    let [host_scale, host_counts] = pair(Role::Input, Pool::Pinned);
    program.loss_scaling = Some(LossScaling { scale: value, counts });
    let results = &mut program.host_buffers.results;
    (results.scale, results.counts) = (Some(host_scale), Some(host_counts));
    let fill = |output: ValueId, number: f32| {
        let op = Op::Fill(Fill { output: program.ty(output), value: number });
        let action = Action::Launch { op, inputs: Vec::new(), outputs: vec![output], workspace: None };
        Instruction::new(action, scope, Phase::Start)
    };
    let start = [fill(value, scale.initial() as f32), fill(counts, 0.0)];
    for Section { kind, live_in, live_out, code, .. } in &mut program.sections {
        let state = [value, counts, host_scale, host_counts];
        live_out.extend(state);
        match kind {
            SectionKind::Start => code.extend(start.iter().cloned()),
            _ => live_in.extend(state),
        }
        if kind.is_in_step() {
            for instruction in code {
                let Action::Launch { op, inputs, .. } = &mut instruction.action else { continue };
                if let Some((index, scaled)) = op.as_loss().map(Loss::scaled) {
                    *op = scaled;
                    inputs.insert(index, value);
                }
            }
        }
    }
}
