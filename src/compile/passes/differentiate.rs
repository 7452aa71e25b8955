//! Appends the backward pass to each forward pass of a step, with recomputation of the marked regions.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::Draft;
use super::annotations::Annotations;
use super::dtypes::Dtypes;
use crate::ir::{Action, Bucket, Instruction, Program, Section, SectionKind, Stage, Value, Variant, View};
use crate::recompute_plan::{RecomputePolicy, RecomputeRegion};
use device::{Phase, Role};
use graph::ScopeId;
use ops::{Activation, Add, DType, Op, OutputRole, Tape, TensorType, ValueId};

pub(super) fn differentiate(draft: &mut Draft) {
    add_gradient_buckets(&mut draft.program, Dtypes::of(draft.config).gradients, &draft.annotations);
    for at in 0..draft.program.sections.len() {
        if draft.program.sections[at].kind.is_in_step() {
            differentiate_section(draft, at);
        }
    }
    draft.program.stage = Stage::Differentiated;
}

/// Adds the backward pass to a section, if anything is trained. The loss and the gradients become live-out.
fn differentiate_section(draft: &mut Draft, at: usize) {
    let loss = match draft.program.trains() {
        true => add_backward(draft, at),
        false => first_loss(&draft.program.sections[at].code),
    };
    let Program { sections, buckets, .. } = &mut draft.program;
    let Section { kind, live_out, .. } = &mut sections[at];
    live_out.extend(buckets.iter().filter_map(|bucket| bucket.gradients));
    live_out.push(loss);
    if *kind == SectionKind::First {
        draft.program.loss = Some(loss);
    }
}

/// Appends the backward pass to the section's forward pass. Returns the loss.
fn add_backward(draft: &mut Draft, at: usize) -> ValueId {
    let program = &mut draft.program;
    let mut code = std::mem::take(&mut program.sections[at].code);
    fuse_loss_gradients(program, &mut code);
    let loss = first_loss(&code);

    let gradients = Dtypes::of(draft.config).gradients;
    let mut backward = Backward::new(program, &draft.annotations, gradients, &code);
    let mut all = Vec::with_capacity(code.len() * 3);
    // The backward of each loss slice follows its forward, so that at most one slice of the
    // logits is in memory.
    for range_code in code.chunk_by(|a, b| a.slice == b.slice) {
        all.extend_from_slice(range_code);
        if range_code[0].slice.is_some() {
            range_code.iter().rev().for_each(|instruction| backward.instruction(instruction));
            backward.emitted.iter_mut().for_each(|instruction| instruction.slice = range_code[0].slice);
            all.append(&mut backward.emitted);
        }
    }
    let recompute_plan = draft.annotations.recompute.outermost(&backward.program.scopes);
    for range in ranges_from_the_end(&recompute_plan, &code) {
        let region = recompute_plan[code[range.start].scope.index()];
        let recomputation = |region: RecomputeRegion| {
            Recomputation::new(backward.program, &code[range.clone()], region.policy)
        };
        backward.recomputation = region.map(recomputation);
        for instruction in code[range.clone()].iter().rev() {
            backward.instruction(instruction);
        }
        if let Some(recomputation) = backward.recomputation.take() {
            all.extend(recomputation.emit(backward.program, &code[range]));
        }
        all.append(&mut backward.emitted);
    }
    let model_flops = program.flops_of(all.iter().filter(|instruction| instruction.is_model_work()));
    let section = &mut program.sections[at];
    (section.code, section.model_flops) = (all, model_flops);
    loss
}

/// The output of the code's first loss operation. With loss slices, later slices add to it in place.
fn first_loss(code: &[Instruction]) -> ValueId {
    let first = code.iter().find(|instruction| instruction.action.is_loss());
    first.expect("a model has a loss").action.writes()[0]
}

/// Adds a gradient bucket for each trainable parameter bucket, and a view of it for each parameter.
fn add_gradient_buckets(program: &mut Program, dtype: DType, annotations: &Annotations) {
    for index in program.trained() {
        let Bucket { parameters, whole, .. } = program.buckets[index];
        let pool = annotations.bucket_pool(parameters, annotations.gradients);
        let parameters = program.value(whole).clone();
        let ty = TensorType { dtype, ..parameters.ty };
        let gradients = Value { variant: Variant::Gradient, role: Role::Gradient, ty, pool, ..parameters };
        let gradients = program.add_like(gradients);
        program.buckets[index].gradients = Some(gradients);
    }
    for index in 0..program.parameters.len() {
        let parameter = &program.parameters[index];
        let Some(bucket) = program.buckets[parameter.bucket].gradients else { continue };
        let View { range, .. } = program.value(parameter.value).view.expect("parameters lie in buckets");
        let gradient = program.add_view_like(parameter.value, range, bucket);
        program.parameters[index].gradient = Some(gradient);
    }
}

/// Makes each loss write the gradient of its input in the same launch.
fn fuse_loss_gradients(program: &mut Program, code: &mut [Instruction]) {
    for instruction in code {
        let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action else { continue };
        let Some(loss) = op.as_loss() else { continue };
        *op = loss.with_gradient();
        let source = program.value(inputs[0]).clone();
        outputs.push(program.add_like(Value { variant: Variant::Gradient, ..source }));
    }
}

/// Ranges of code with one recompute region each, or with none, last first. Loss slices are excluded: their backward
/// is already emitted.
fn ranges_from_the_end(
    recompute_plan: &[Option<RecomputeRegion>],
    code: &[Instruction],
) -> Vec<Range<usize>> {
    let region = |instruction: &Instruction| (recompute_plan[instruction.scope.index()], instruction.slice);
    let mut ranges = Vec::new();
    let mut start = 0;
    for range_code in code.chunk_by(|a, b| region(a) == region(b)) {
        if range_code[0].slice.is_none() {
            ranges.push(start..start + range_code.len());
        }
        start += range_code.len();
    }
    ranges.reverse();
    ranges
}

/// Whether the action casts parameters to the dtype of matmuls. Such a cast and its parameter share one gradient.
fn casts_parameters(program: &Program, action: &Action) -> bool {
    action.is_cast() && action.reads().iter().all(|&id| program.value(id).role == Role::Parameter)
}

/// The recomputation of a range of code: a copy of the part of its forward pass that computes the values that backward
/// reads.
struct Recomputation {
    /// Values of the forward pass that backward must not read: it reads a recomputed copy.
    recomputed_outputs: HashSet<ValueId>,
    /// Values that backward has read so far, each with its recomputed copy.
    recomputed: HashMap<ValueId, ValueId>,
}

impl Recomputation {
    fn new(program: &Program, code: &[Instruction], policy: RecomputePolicy) -> Recomputation {
        // Casts of parameters stay live until backward has read them, except decoded parameters. Losses are not
        // repeated: they wrote their gradient in the forward pass.
        let is_kept =
            |action: &Action| casts_parameters(program, action) && !program.decodes_parameter(action);
        let mut recomputed_outputs: HashSet<ValueId> = HashSet::new();
        for action in code.iter().map(|instruction| &instruction.action) {
            let Action::Launch { op, outputs, .. } = action else { continue };
            if !is_kept(action) && !action.is_loss() && policy.recomputes(op) {
                recomputed_outputs.extend(outputs);
            }
        }
        Recomputation { recomputed_outputs, recomputed: HashMap::new() }
    }

    /// The value that backward reads: a recomputed copy if the range recomputes the value, otherwise the value itself.
    fn recomputed_value(&mut self, program: &mut Program, id: ValueId) -> ValueId {
        if let Some(&recomputed_value) = self.recomputed.get(&id) {
            return recomputed_value;
        }
        let recomputed_value = match program.value(id).view {
            Some(View { of, range }) => match self.recomputed_value(program, of) {
                same if same == of => return id,
                parent => program.add_view_like(id, range, parent),
            },
            None if self.recomputed_outputs.contains(&id) => {
                let value = program.value(id).clone();
                program.add_like(Value { variant: Variant::Recomputed, ..value })
            }
            None => return id,
        };
        self.recomputed.insert(id, recomputed_value);
        recomputed_value
    }

    /// The part of the range's forward pass that computes the values in `recomputed`, in order.
    fn emit(mut self, program: &mut Program, code: &[Instruction]) -> Vec<Instruction> {
        let mut repeated = Vec::new();
        for instruction in code.iter().rev() {
            let Action::Launch { op, inputs, outputs, workspace } = &instruction.action else { continue };
            if !outputs.iter().any(|output| self.recomputed.contains_key(output)) {
                continue;
            }
            // The form without side effects neither reads nor writes what the operation updates.
            let (form, updates) = match op.recomputed() {
                Some(form) => (form, op.updates()),
                None => (op.clone(), [].as_slice()),
            };
            let written = (0..).zip(outputs).filter(|(at, _)| updates.iter().all(|update| update.0 != *at));
            let read = (0..).zip(inputs).filter(|(at, _)| updates.iter().all(|update| update.1 != *at));
            let outputs = written.map(|(_, &output)| self.recomputed_value(program, output)).collect();
            let inputs = read.map(|(_, &input)| self.recomputed_value(program, input)).collect();
            let action = Action::Launch { op: form, inputs, outputs, workspace: *workspace };
            let instruction = Instruction::new(action, instruction.scope, Phase::Backward);
            repeated.push(Instruction { recompute: true, ..instruction });
        }
        repeated.reverse();
        repeated
    }
}

/// The tape: emits the backward code of each instruction.
struct Backward<'a> {
    program: &'a mut Program,
    annotations: &'a Annotations,
    /// By value: whether the loss depends on trainable parameters through it, so that backward computes its gradient.
    needs_gradient: Vec<bool>,
    /// By value of the forward pass: its accumulated gradient so far.
    gradients: Vec<Option<ValueId>>,
    /// Accumulated gradients of views of the forward pass. By view, since several values can be the same view.
    parts: HashMap<View, ValueId>,
    /// By gradient: the number of values that it was passed on to unchanged.
    passed: HashMap<ValueId, usize>,
    /// The dtype of parameter gradients.
    gradient_dtype: DType,
    /// The first version of each parameter's gradient.
    parameter_gradients: HashMap<ValueId, ValueId>,
    /// The parameter of each cast: both have the parameter's gradient.
    cast_of: HashMap<ValueId, ValueId>,
    /// Decoded parameters, each with its decoding action, which backward repeats.
    decodings: HashMap<ValueId, Action>,
    emitted: Vec<Instruction>,
    /// Set within a range that is recomputed.
    recomputation: Option<Recomputation>,
    node: Node,
}

/// The instruction that is being differentiated.
struct Node {
    scope: ScopeId,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
}

impl<'a> Backward<'a> {
    fn new(
        program: &'a mut Program,
        annotations: &'a Annotations,
        gradient_dtype: DType,
        code: &[Instruction],
    ) -> Backward<'a> {
        let mut needs_gradient = vec![false; program.values.len()];
        let mut parameter_gradients = HashMap::new();
        for parameter in &program.parameters {
            let Some(gradient) = parameter.gradient else { continue };
            needs_gradient[parameter.value.index()] = true;
            parameter_gradients.insert(parameter.value, gradient);
        }
        let (mut cast_of, mut decodings) = (HashMap::new(), HashMap::new());
        for instruction in code {
            let (reads, writes) = (instruction.action.reads(), instruction.action.writes());
            if reads.iter().any(|&input| {
                needs_gradient[program.parent_or_self(input).index()] || needs_gradient[input.index()]
            }) {
                for output in writes {
                    needs_gradient[output.index()] = program.ty(*output).dtype.is_float();
                }
            }
            if program.decodes_parameter(&instruction.action) {
                decodings.extend(writes.iter().map(|&write| (write, instruction.action.clone())));
            }
            if casts_parameters(program, &instruction.action) {
                cast_of.extend(writes.iter().copied().zip(reads.iter().copied()));
            }
        }
        let gradients = vec![None; program.values.len()];
        let node = Node { scope: ScopeId(0), inputs: Vec::new(), outputs: Vec::new() };
        let emitted = Vec::new();
        let (parts, passed) = (HashMap::new(), HashMap::new());
        Backward {
            program,
            annotations,
            needs_gradient,
            gradients,
            parts,
            passed,
            gradient_dtype,
            parameter_gradients,
            cast_of,
            decodings,
            emitted,
            recomputation: None,
            node,
        }
    }

    /// The value whose gradient the node's input contributes to: the parameter of a cast, or the input.
    fn variable(&self, input: usize) -> ValueId {
        let id = self.node.inputs[input];
        *self.cast_of.get(&id).unwrap_or(&id)
    }

    /// Emits the backward code of one instruction.
    fn instruction(&mut self, instruction: &Instruction) {
        let Action::Launch { op, inputs, outputs, .. } = &instruction.action else { return };
        if casts_parameters(self.program, &instruction.action) {
            return;
        }
        if !outputs.iter().any(|output| self.needs_gradient[output.index()]) {
            return;
        }
        self.node = Node { scope: instruction.scope, inputs: inputs.clone(), outputs: outputs.clone() };
        op.backward(self);
    }

    /// The value that backward reads: decoded again, recomputed, or the forward value itself.
    fn readable(&mut self, id: ValueId) -> ValueId {
        if let Some(action) = self.decodings.get(&id).cloned() {
            return self.decode_again(id, action);
        }
        match &mut self.recomputation {
            Some(recomputation) => recomputation.recomputed_value(self.program, id),
            None => id,
        }
    }

    /// Emits the decoding of a parameter from its storage format again, for one use in backward.
    fn decode_again(&mut self, id: ValueId, mut action: Action) -> ValueId {
        let value = self.program.value(id).clone();
        let decoded = self.program.add_like(value);
        if let Action::Launch { outputs, .. } = &mut action {
            *outputs = vec![decoded];
        }
        let instruction = Instruction::new(action, self.node.scope, Phase::Backward);
        self.emitted.push(Instruction { recompute: true, ..instruction });
        decoded
    }

    /// The value that the gradient of `of` is written to: the next version of `updates` (an update in place), the
    /// parameter's view of its gradient bucket, or a new value.
    fn gradient_value(&mut self, of: ValueId, ty: TensorType, updates: Option<ValueId>) -> ValueId {
        if let Some(previous) = updates {
            return self.program.add_version(previous);
        }
        if let Some(&first) = self.parameter_gradients.get(&of) {
            return first;
        }
        if let Some(view @ View { of: whole, range }) = self.program.value(of).view {
            // The view already has a gradient, for example of another loss on the same rows: add to it in place.
            if let Some(&accumulated) = self.parts.get(&view) {
                return self.program.add_version(accumulated);
            }
            let parent = self.program.ty(whole);
            let gradient = match self.gradients[whole.index()] {
                Some(gradient) => gradient,
                None => self.gradient_value(whole, TensorType { dtype: ty.dtype, ..parent }, None),
            };
            self.gradients[whole.index()] = Some(gradient);
            return self.program.add_view_like(of, range, gradient);
        }
        let (variant, role) = (Variant::Gradient, Role::Activation);
        let value = self.program.value(of).clone();
        self.program.add_like(Value { variant, ty, role, ..value })
    }

    fn accumulated_gradient(&self, of: ValueId) -> Option<ValueId> {
        match self.program.value(of).view.filter(|_| !self.parameter_gradients.contains_key(&of)) {
            Some(view) => self.parts.get(&view).copied(),
            None => self.gradients[of.index()],
        }
    }

    fn set_gradient(&mut self, of: ValueId, gradient: ValueId) {
        match self.program.value(of).view.filter(|_| !self.parameter_gradients.contains_key(&of)) {
            Some(view) => drop(self.parts.insert(view, gradient)),
            None => self.gradients[of.index()] = Some(gradient),
        }
    }
}

impl Tape for Backward<'_> {
    fn input(&mut self, index: usize) -> ValueId {
        self.readable(self.node.inputs[index])
    }

    fn output(&mut self, index: usize) -> ValueId {
        self.readable(self.node.outputs[index])
    }

    fn input_type(&self, index: usize) -> TensorType {
        self.program.ty(self.node.inputs[index])
    }

    fn parameter_gradients(&self) -> DType {
        self.gradient_dtype
    }

    fn output_gradient(&self, index: usize) -> ValueId {
        self.accumulated_gradient(self.node.outputs[index])
            .expect("every reader of an output adds to its gradient")
    }

    fn wants(&self, input: usize) -> bool {
        let variable = self.variable(input);
        self.needs_gradient[variable.index()]
            || self.needs_gradient[self.program.parent_or_self(variable).index()]
    }

    fn partial(&self, input: usize) -> Option<ValueId> {
        self.accumulated_gradient(self.variable(input))
    }

    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, kinds: &[OutputRole]) -> Vec<ValueId> {
        let types = op.outputs(&self.program.types(&inputs)).unwrap_or_else(|error| panic!("{error}"));
        let scope = self.node.scope;
        let mut outputs = Vec::with_capacity(types.len());
        for (index, (&ty, of)) in types.iter().zip(kinds).enumerate() {
            let updates = op.updates().iter().find(|(output, _)| *output == index);
            let updates = updates.map(|&(_, input)| inputs[input]);
            outputs.push(match *of {
                OutputRole::Gradient(input) => {
                    let of = self.variable(input);
                    let accumulated = self.accumulated_gradient(of);
                    assert!(
                        accumulated.is_none_or(|accumulated| inputs.contains(&accumulated)),
                        "{} adds",
                        op.name()
                    );
                    let gradient = self.gradient_value(of, ty, updates);
                    self.set_gradient(of, gradient);
                    gradient
                }
                OutputRole::OutputGradient(output) => {
                    let of = self.node.outputs[output];
                    assert!(
                        self.accumulated_gradient(of).is_none(),
                        "only {} writes this gradient",
                        op.name()
                    );
                    self.gradient_value(of, ty, None)
                }
                OutputRole::Like(input) => {
                    let Value { shape_source, ty: other, .. } = *self.program.value(inputs[input]);
                    assert_eq!(
                        ty.shape,
                        other.shape,
                        "{} has an output of the shape of its input",
                        op.name()
                    );
                    let pool = self.annotations.device_of(scope).workplace();
                    self.program.add_value(op.name(), scope, (shape_source, ty), Role::Activation, pool)
                }
            });
        }
        let action = Action::Launch { op, inputs, outputs: outputs.clone(), workspace: None };
        self.emitted.push(Instruction::new(action, scope, Phase::Backward));
        outputs
    }

    fn fuse_slope(&mut self, activation: Activation, saved: ValueId) -> Option<ValueId> {
        let gradient = self.output_gradient(0);
        let Action::Launch { op, inputs, outputs, .. } = &mut self.emitted.last_mut()?.action else {
            return None;
        };
        // The other branch of a sum may still read a gradient that was passed on to both.
        let is_shared = self.passed.get(&gradient).is_some_and(|&values| values > 1);
        if outputs[..] != [gradient] || is_shared {
            return None;
        }
        *op = op.through_slope(activation)?;
        inputs.push(saved);
        // It now is the gradient of the activation's input.
        self.program.values[gradient.index()].name = self.program.value(self.node.outputs[1]).name;
        Some(gradient)
    }

    fn pass(&mut self, input: usize, gradient: ValueId) {
        if !self.wants(input) {
            return;
        }
        let of = self.variable(input);
        match self.partial(input) {
            None => {
                assert!(self.program.value(of).view.is_none(), "only whole values are passed on unchanged");
                self.set_gradient(of, gradient);
                *self.passed.entry(gradient).or_default() += 1;
            }
            Some(accumulated) => {
                self.emit(Op::Add(Add::PLAIN), vec![accumulated, gradient], &[OutputRole::Gradient(input)]);
            }
        }
    }
}
