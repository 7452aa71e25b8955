//! Appends the backward pass to each forward pass of a step, computing again what is marked instead of keeping it.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::dtypes::Dtypes;
use super::instruction::{Action, Instruction};
use super::program::{Program, Section, SectionKind, Stage};
use super::recompute_plan::{RecomputePolicy, RecomputeRegion};
use super::value::{Form, Value, View};
use super::{Annotations, Draft};
use device::{Phase, Role};
use graph::ScopeId;
use ops::{Activation, Add, DType, Emitted, Op, Tape, TensorType, ValueId};

pub(super) fn differentiate(draft: &mut Draft) {
    add_gradient_buckets(&mut draft.program, Dtypes::of(draft.config).gradients, &draft.annotations);
    for at in 0..draft.program.sections.len() {
        if draft.program.sections[at].kind.is_of_step() {
            differentiate_section(draft, at);
        }
    }
    draft.program.stage = Stage::Differentiated;
}

/// Adds the backward pass to a section, if anything is trained. It leaves its loss and the gradients.
fn differentiate_section(draft: &mut Draft, at: usize) {
    let loss = match draft.program.trains() {
        true => add_backward(draft, at),
        false => first_loss(&draft.program.sections[at].code),
    };
    let Program { sections, buckets, .. } = &mut draft.program;
    let Section { kind, exit, .. } = &mut sections[at];
    exit.extend(buckets.iter().filter_map(|bucket| bucket.gradients));
    exit.push(loss);
    if *kind == SectionKind::First {
        draft.program.loss = Some(loss);
    }
}

/// Returns the section's loss.
fn add_backward(draft: &mut Draft, at: usize) -> ValueId {
    let program = &mut draft.program;
    let mut code = std::mem::take(&mut program.sections[at].code);
    give_losses_gradients(program, &mut code);
    let loss = first_loss(&code);

    let gradients = Dtypes::of(draft.config).gradients;
    let mut backward = Backward::new(program, &draft.annotations, gradients, &code);
    let mut all = Vec::with_capacity(code.len() * 3);
    // The slices of a loss take their gradients with them, so that no two of them are there at a time.
    for stretch in code.chunk_by(|a, b| a.slice == b.slice) {
        all.extend_from_slice(stretch);
        if stretch[0].slice.is_some() {
            stretch.iter().rev().for_each(|instruction| backward.instruction(instruction));
            backward.emitted.iter_mut().for_each(|instruction| instruction.slice = stretch[0].slice);
            all.append(&mut backward.emitted);
        }
    }
    let recompute_plan = draft.annotations.recompute.outermost(&backward.program.scopes);
    for range in stretches_from_the_end(&recompute_plan, &code) {
        let unit = recompute_plan[code[range.start].scope.index()];
        let recomputation =
            |unit: RecomputeRegion| Recomputation::new(backward.program, &code[range.clone()], unit.again);
        backward.recomputation = unit.map(recomputation);
        for instruction in code[range.clone()].iter().rev() {
            backward.instruction(instruction);
        }
        if let Some(recomputation) = backward.recomputation.take() {
            all.extend(recomputation.emit(backward.program, &code[range]));
        }
        all.append(&mut backward.emitted);
    }
    let model_flops = program.flops_of(all.iter().filter(|instruction| instruction.is_of_model()));
    let section = &mut program.sections[at];
    (section.code, section.model_flops) = (all, model_flops);
    loss
}

/// The first version of the loss.
fn first_loss(code: &[Instruction]) -> ValueId {
    let first = code.iter().find(|instruction| instruction.action.is_loss());
    first.expect("a model has a loss").action.writes()[0]
}

/// One bucket of gradients for each bucket of parameters, and a view for each parameter.
fn add_gradient_buckets(program: &mut Program, dtype: DType, annotations: &Annotations) {
    for index in program.trained() {
        let of = program.buckets[index].parameters;
        let parameters = program.value(of).clone();
        let ty = TensorType { dtype, ..parameters.ty };
        let pool = annotations.beside(of, annotations.gradients);
        let gradients = Value { form: Form::Gradient, role: Role::Gradient, ty, pool, ..parameters };
        let gradients = program.add_like(gradients);
        program.buckets[index].gradients = Some(gradients);
    }
    for index in 0..program.parameters.len() {
        let parameter = &program.parameters[index];
        let Some(bucket) = program.buckets[parameter.bucket].gradients else { continue };
        let View { part, .. } = program.value(parameter.value).view.expect("parameters lie in buckets");
        let gradient = program.add_view_like(parameter.value, part, bucket);
        program.parameters[index].gradient = Some(gradient);
    }
}

/// Lets each loss write the gradient of what it is computed from in the same pass.
fn give_losses_gradients(program: &mut Program, code: &mut [Instruction]) {
    for instruction in code {
        let Action::Launch { op, inputs, outputs, .. } = &mut instruction.action else { continue };
        let Some(loss) = op.as_loss() else { continue };
        *op = loss.with_gradient();
        let source = program.value(inputs[0]).clone();
        outputs.push(program.add_like(Value { form: Form::Gradient, ..source }));
    }
}

/// Stretches of code that are computed again as a whole or not at all, last first, but for slices of losses.
fn stretches_from_the_end(
    recompute_plan: &[Option<RecomputeRegion>],
    code: &[Instruction],
) -> Vec<Range<usize>> {
    let unit = |instruction: &Instruction| (recompute_plan[instruction.scope.index()], instruction.slice);
    let mut stretches = Vec::new();
    let mut start = 0;
    for stretch in code.chunk_by(|a, b| unit(a) == unit(b)) {
        if stretch[0].slice.is_none() {
            stretches.push(start..start + stretch.len());
        }
        start += stretch.len();
    }
    stretches.reverse();
    stretches
}

/// Whether it puts parameters into the dtype of matrix work: their gradient is that of the parameter itself.
fn casts_parameters(program: &Program, action: &Action) -> bool {
    action.is_cast() && action.reads().iter().all(|&id| program.value(id).role == Role::Parameter)
}

/// A stretch that is computed again: its values' stand-ins, made as backward asks for them.
struct Recomputation {
    made_here: HashSet<ValueId>,
    stand_ins: HashMap<ValueId, ValueId>,
}

impl Recomputation {
    fn new(program: &Program, layer: &[Instruction], again: RecomputePolicy) -> Recomputation {
        // Casts of parameters are there until backward has read them but for those of stored ones, and losses have given
        // their gradient already.
        let is_kept = |action: &Action| casts_parameters(program, action) && !program.brings_stored(action);
        let mut made_here: HashSet<ValueId> = HashSet::new();
        for action in layer.iter().map(|instruction| &instruction.action) {
            let Action::Launch { op, outputs, .. } = action else { continue };
            if !is_kept(action) && !action.is_loss() && again.is_of(op) {
                made_here.extend(outputs);
            }
        }
        Recomputation { made_here, stand_ins: HashMap::new() }
    }

    /// The value itself, if it was made outside of the layer.
    fn stand_in(&mut self, program: &mut Program, id: ValueId) -> ValueId {
        if let Some(&stand_in) = self.stand_ins.get(&id) {
            return stand_in;
        }
        let stand_in = match program.value(id).view {
            Some(View { of, part }) => match self.stand_in(program, of) {
                same if same == of => return id,
                parent => program.add_view_like(id, part, parent),
            },
            None if self.made_here.contains(&id) => {
                let value = program.value(id).clone();
                program.add_like(Value { form: Form::Recomputed, ..value })
            }
            None => return id,
        };
        self.stand_ins.insert(id, stand_in);
        stand_in
    }

    /// The part of the layer's forward pass that backward asked for.
    fn emit(mut self, program: &mut Program, layer: &[Instruction]) -> Vec<Instruction> {
        let mut repeated = Vec::new();
        for instruction in layer.iter().rev() {
            let Action::Launch { op, inputs, outputs, workspace } = &instruction.action else { continue };
            if !outputs.iter().any(|output| self.stand_ins.contains_key(output)) {
                continue;
            }
            let outputs = outputs.iter().map(|&output| self.stand_in(program, output)).collect();
            let inputs = inputs.iter().map(|&input| self.stand_in(program, input)).collect();
            let action = Action::Launch { op: op.clone(), inputs, outputs, workspace: *workspace };
            let instruction = Instruction::new(action, instruction.scope, Phase::Backward);
            repeated.push(Instruction { recompute: true, ..instruction });
        }
        repeated.reverse();
        repeated
    }
}

/// The tape: emits the backward of one instruction after the other.
struct Backward<'a> {
    program: &'a mut Program,
    annotations: &'a Annotations,
    /// By value: whether the loss depends on it through something trainable.
    wanted: Vec<bool>,
    /// By value of the forward pass: its gradient so far.
    gradients: Vec<Option<ValueId>>,
    /// The same of what is a part of a value of the forward pass, whatever the view.
    parts: HashMap<View, ValueId>,
    /// What those of parameters are stored as.
    gradient_dtype: DType,
    /// The first version of each parameter's gradient.
    parameter_gradients: HashMap<ValueId, ValueId>,
    /// The parameter of each cast: they have one gradient, the parameter's.
    cast_of: HashMap<ValueId, ValueId>,
    /// What stored parameters were brought to, each with what did, which is done again.
    brought: HashMap<ValueId, Action>,
    emitted: Vec<Instruction>,
    /// Set within a stretch that is computed again.
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
        let mut wanted = vec![false; program.values.len()];
        let mut parameter_gradients = HashMap::new();
        for parameter in &program.parameters {
            let Some(gradient) = parameter.gradient else { continue };
            wanted[parameter.value.index()] = true;
            parameter_gradients.insert(parameter.value, gradient);
        }
        let (mut cast_of, mut brought) = (HashMap::new(), HashMap::new());
        for instruction in code {
            let (reads, writes) = (instruction.action.reads(), instruction.action.writes());
            if reads.iter().any(|&input| wanted[program.whole(input).index()] || wanted[input.index()]) {
                for output in writes {
                    wanted[output.index()] = program.ty(*output).dtype.is_float();
                }
            }
            if program.brings_stored(&instruction.action) {
                brought.extend(writes.iter().map(|&write| (write, instruction.action.clone())));
            }
            if casts_parameters(program, &instruction.action) {
                cast_of.extend(writes.iter().copied().zip(reads.iter().copied()));
            }
        }
        let gradients = vec![None; program.values.len()];
        let node = Node { scope: ScopeId(0), inputs: Vec::new(), outputs: Vec::new() };
        let emitted = Vec::new();
        let parts = HashMap::new();
        Backward {
            program,
            annotations,
            wanted,
            gradients,
            parts,
            gradient_dtype,
            parameter_gradients,
            cast_of,
            brought,
            emitted,
            recomputation: None,
            node,
        }
    }

    /// What is differentiated by where the node reads this input.
    fn variable(&self, input: usize) -> ValueId {
        let id = self.node.inputs[input];
        *self.cast_of.get(&id).unwrap_or(&id)
    }

    fn instruction(&mut self, instruction: &Instruction) {
        let Action::Launch { op, inputs, outputs, .. } = &instruction.action else { return };
        if casts_parameters(self.program, &instruction.action) {
            return;
        }
        if !outputs.iter().any(|output| self.wanted[output.index()]) {
            return;
        }
        self.node = Node { scope: instruction.scope, inputs: inputs.clone(), outputs: outputs.clone() };
        op.backward(self);
    }

    /// The value as backward reads it.
    fn readable(&mut self, id: ValueId) -> ValueId {
        if let Some(action) = self.brought.get(&id).cloned() {
            return self.bring_again(id, action);
        }
        match &mut self.recomputation {
            Some(recomputation) => recomputation.stand_in(self.program, id),
            None => id,
        }
    }

    fn bring_again(&mut self, id: ValueId, mut action: Action) -> ValueId {
        let value = self.program.value(id).clone();
        let again = self.program.add_like(value);
        if let Action::Launch { outputs, .. } = &mut action {
            *outputs = vec![again];
        }
        let instruction = Instruction::new(action, self.node.scope, Phase::Backward);
        self.emitted.push(Instruction { recompute: true, ..instruction });
        again
    }

    /// Where the gradient of `of` goes: the next version of what it adds to, the parameter's place in its
    /// bucket, or a value of its own.
    fn gradient_value(&mut self, of: ValueId, ty: TensorType, updates: Option<ValueId>) -> ValueId {
        if let Some(previous) = updates {
            return self.program.add_version(previous);
        }
        if let Some(&first) = self.parameter_gradients.get(&of) {
            return first;
        }
        if let Some(view @ View { of: whole, part }) = self.program.value(of).view {
            // Another loss that is computed from the same rows adds to what the first one left there.
            if let Some(&so_far) = self.parts.get(&view) {
                return self.program.add_version(so_far);
            }
            let parent = self.program.ty(whole);
            let gradient = match self.gradients[whole.index()] {
                Some(gradient) => gradient,
                None => self.gradient_value(whole, TensorType { dtype: ty.dtype, ..parent }, None),
            };
            self.gradients[whole.index()] = Some(gradient);
            return self.program.add_view_like(of, part, gradient);
        }
        let (form, role) = (Form::Gradient, Role::Activation);
        let value = self.program.value(of).clone();
        self.program.add_like(Value { form, ty, role, ..value })
    }

    fn gradient_so_far(&self, of: ValueId) -> Option<ValueId> {
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
        self.gradient_so_far(self.node.outputs[index]).expect("what reads an output gives it a gradient")
    }

    fn wants(&self, input: usize) -> bool {
        let variable = self.variable(input);
        self.wanted[variable.index()] || self.wanted[self.program.whole(variable).index()]
    }

    fn partial(&self, input: usize) -> Option<ValueId> {
        self.gradient_so_far(self.variable(input))
    }

    fn emit(&mut self, op: Op, inputs: Vec<ValueId>, made: &[Emitted]) -> Vec<ValueId> {
        let types = op.outputs(&self.program.types(&inputs)).unwrap_or_else(|error| panic!("{error}"));
        let scope = self.node.scope;
        let mut outputs = Vec::with_capacity(types.len());
        for (index, (&ty, of)) in types.iter().zip(made).enumerate() {
            let updates = op.updates().iter().find(|(output, _)| *output == index);
            let updates = updates.map(|&(_, input)| inputs[input]);
            outputs.push(match *of {
                Emitted::Gradient(input) => {
                    let of = self.variable(input);
                    let so_far = self.gradient_so_far(of);
                    assert!(so_far.is_none_or(|so_far| inputs.contains(&so_far)), "{} adds", op.name());
                    let gradient = self.gradient_value(of, ty, updates);
                    self.set_gradient(of, gradient);
                    gradient
                }
                Emitted::OutputGradient(output) => {
                    let of = self.node.outputs[output];
                    assert!(self.gradient_so_far(of).is_none(), "{} alone gives this gradient", op.name());
                    self.gradient_value(of, ty, None)
                }
                Emitted::Like(input) => {
                    let Value { like, ty: other, .. } = *self.program.value(inputs[input]);
                    assert_eq!(ty.shape, other.shape, "{} makes something like its input", op.name());
                    let pool = self.annotations.home_of(scope).workplace();
                    self.program.add_value(op.name(), scope, (like, ty), Role::Activation, pool)
                }
            });
        }
        let action = Action::Launch { op, inputs, outputs: outputs.clone(), workspace: None };
        self.emitted.push(Instruction::new(action, scope, Phase::Backward));
        outputs
    }

    fn fuse_slope(&mut self, activation: Activation) -> Option<ValueId> {
        let gradient = self.output_gradient(0);
        let before = self.output(1);
        let Action::Launch { op, inputs, outputs, .. } = &mut self.emitted.last_mut()?.action else {
            return None;
        };
        if outputs[..] != [gradient] {
            return None;
        }
        *op = op.through_slope(activation)?;
        inputs.push(before);
        // What it is the gradient of now.
        self.program.values[gradient.index()].name = self.program.value(before).name;
        Some(gradient)
    }

    fn pass(&mut self, input: usize, gradient: ValueId) {
        if !self.wants(input) {
            return;
        }
        let of = self.variable(input);
        match self.partial(input) {
            None => {
                assert!(self.program.value(of).view.is_none(), "what goes on unchanged goes on as a whole");
                self.set_gradient(of, gradient);
            }
            Some(so_far) => {
                self.emit(Op::Add(Add::PLAIN), vec![so_far, gradient], &[Emitted::Gradient(input)]);
            }
        }
    }
}
