//! Which dtype matrix work is done in: weights are cast once for each section that uses them, and gradients of half
//! precision are scaled.

use std::collections::HashMap;

use super::Draft;
use super::program::{Action, Instruction, Kind, Like, LossScaling, Program, Section, SectionKind, Value};
use crate::device::{DeviceKind, Phase, Pool, Role};
use crate::ops::{Cast, DType, Fill, LayerNorm, Op, SCALE, STEP_COUNTS_LEN, TensorType, ValueId};
use crate::spec::{LossScale, Precision};

pub(super) fn choose(draft: &mut Draft) {
    let precision = draft.config.strategy.precision;
    let program = &mut draft.program;
    match (precision.dtype(), precision, draft.target.kind) {
        // Only a card has units for it.
        (DType::F32, Precision::Tf32, DeviceKind::Cuda) => allow_tf32(program),
        (DType::F32, ..) => {}
        (number, ..) => {
            for index in 0..program.sections.len() {
                let code = std::mem::take(&mut program.sections[index].code);
                program.sections[index].code = Casting::new(program, number).section(code);
            }
        }
    }
    if let Some(scale) = draft.config.strategy.loss_scale {
        add_loss_scale(program, scale);
    }
}

fn allow_tf32(program: &mut Program) {
    for instruction in program.sections.iter_mut().flat_map(|section| &mut section.code) {
        if let Action::Launch { op: Op::Linear(op), .. } = &mut instruction.action {
            op.tf32 = true;
        }
    }
}

/// Rewrites one section's forward pass.
struct Casting<'a> {
    program: &'a mut Program,
    number: DType,
    /// By parameter: what it was cast to in this section.
    cast: HashMap<ValueId, ValueId>,
}

impl<'a> Casting<'a> {
    fn new(program: &'a mut Program, number: DType) -> Casting<'a> {
        Casting { program, number, cast: HashMap::new() }
    }

    fn section(&mut self, code: Vec<Instruction>) -> Vec<Instruction> {
        let mut result = Vec::with_capacity(code.len() * 2);
        for mut instruction in code {
            if let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action {
                if let Op::LayerNorm(LayerNorm { output, .. }) = op {
                    *output = self.number;
                }
                if let Op::Linear(op) = op {
                    // What is added to a residual stream stays in full precision.
                    let bias = (op.bias && !op.residual).then_some(2);
                    let weights: Vec<usize> = [1].into_iter().chain(bias).collect();
                    let (scope, phase) = (instruction.scope, instruction.phase);
                    let action = self.cast(inputs, &weights);
                    result.extend(action.map(|action| Instruction::new(action, scope, phase)));
                }
                let types = op.outputs(&self.program.types(inputs));
                let types = types.unwrap_or_else(|error| panic!("the model is wrong: {error}"));
                for (&output, ty) in outputs.iter().zip(types) {
                    self.program.values[output.index()].ty = ty;
                }
            }
            result.push(instruction);
        }
        result
    }

    /// Puts casts in the place of some inputs; what is not there yet is made by one launch.
    fn cast(&mut self, inputs: &mut [ValueId], which: &[usize]) -> Option<Action> {
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for &index in which {
            let parameter = inputs[index];
            inputs[index] = *self.cast.entry(parameter).or_insert_with(|| {
                let value = self.program.value(parameter).clone();
                let ty = TensorType { dtype: self.number, ..value.ty };
                let cast = self.program.add_like(Value { kind: Kind::Cast, role: Role::Cast, ty, ..value });
                from.push(parameter);
                to.push(cast);
                cast
            });
        }
        let op = Op::Cast(Cast { to: self.number });
        (!to.is_empty()).then_some(Action::Launch { op, inputs: from, outputs: to, workspace: None })
    }
}

/// The scale and what it is adapted by, there from the start; the loss's gradient is multiplied by it.
fn add_loss_scale(program: &mut Program, scale: LossScale) {
    let scope = program.add_scope("loss_scale");
    let counts = TensorType::f32(&[STEP_COUNTS_LEN]);
    let mut state = |name, ty, role, pool| program.add_value(name, scope, (Like::Fixed, ty), role, pool);
    let scaling = LossScaling {
        scale: state("scale", SCALE, Role::Optimizer, Pool::Device),
        counts: state("counts", counts, Role::Optimizer, Pool::Device),
        host_scale: state("scale", SCALE, Role::Input, Pool::Host),
        host_counts: state("counts", counts, Role::Input, Pool::Host),
    };
    program.loss_scaling = Some(scaling);
    let LossScaling { scale: value, counts, host_scale, host_counts } = scaling;
    let fill = |output: ValueId, number: f32| {
        let op = Op::Fill(Fill { output: program.ty(output), value: number });
        let action = Action::Launch { op, inputs: Vec::new(), outputs: vec![output], workspace: None };
        Instruction::new(action, scope, Phase::Start)
    };
    let start = [fill(value, scale.initial() as f32), fill(counts, 0.0)];
    for Section { kind, entry, exit, code, .. } in &mut program.sections {
        let state = [value, counts, host_scale, host_counts];
        exit.extend(state);
        match kind {
            SectionKind::Start => code.extend(start.iter().cloned()),
            _ => entry.extend(state),
        }
        if *kind == SectionKind::First {
            for instruction in code {
                if let Action::Launch { op: Op::CrossEntropy(op), inputs, .. } = &mut instruction.action {
                    op.scaled = true;
                    inputs.insert(2, value);
                }
            }
        }
    }
}
