//! The optimizer: measures, clips and applies gradients, bucket by bucket, after the backward pass or in it, and
//! copies results to the host.

use std::collections::HashMap;

use super::Draft;
use super::annotations::Annotations;
use super::dtypes::Dtypes;
use super::sections::fill_with_zeros;
use crate::ir::{
    Action, Bucket, BucketState, Instruction, LossScaling, Program, Results, Section, SectionKind,
    ShapeSource, Stage, Value, View,
};
use device::{Collective, Phase, Pool, Queue, Role};
use graph::ScopeId;
use ops::{Cast, GlobalNorm, GradientTerms, Member, Members, Op, State, TensorType, ValueId};
use spec::{DynamicLossScale, Gradients, LossScale, Update, UpdateGroup};

pub(super) fn update(draft: &mut Draft) {
    let config = draft.config;
    let program = &mut draft.program;
    let scope = program.add_scope("optimizer");
    let groups = config.train.optimizer.groups();
    add_states(program, &groups, &draft.annotations);
    let loss = program.loss.expect("set by differentiation");

    let mut code = Vec::new();
    let host_buffers = program.host_buffers.clone();
    let device = draft.annotations.update_device;
    let mut numbers = host_buffers.step_scalars;
    let trains = program.trains();
    let in_backward = config.strategy.update == Update::InBackward;
    if device == Pool::Device && trains {
        let host = program.value(numbers).clone();
        numbers = program.add_like(Value { scope, pool: device, ..host });
        let copy_scalars = copy(Queue::Copy, host_buffers.step_scalars, numbers, scope);
        if in_backward {
            // Copied in the backward pass, before the first gradients are complete.
            let first = program.section_mut(SectionKind::First).expect("added by `build`");
            let backward = first.code.iter().position(|instruction| instruction.phase == Phase::Backward);
            first.code.insert(backward.expect("a trained model has a backward pass") + 1, copy_scalars);
        } else {
            code.push(copy_scalars);
        }
    }
    code.push(copy(Queue::Compute, loss, host_buffers.results.loss, scope));
    let clip_norm = config.train.clip_norm.filter(|_| trains).map(|clip| clip as f32);
    let scale = program.loss_scaling.map(|scaling| scaling.scale);
    let norm =
        (clip_norm.is_some() || scale.is_some()).then(|| global_norm(program, &mut code, scope, device));
    let arithmetic = Dtypes::arithmetic(config, draft.target);
    let mut updates = Vec::new();
    for index in program.trained() {
        let Bucket { format, update, .. } = program.buckets[index];
        let members = trained_members(program, index).0;
        let gradients = GradientTerms { members, clip_norm, scaled: scale.is_some() };
        let numbers_at = groups[..update].iter().map(|group| group.rule.numbers_len()).sum();
        let rule = groups[update].rule.clone();
        let mut op = Op::OptimizerStep(ops::OptimizerStep { gradients, format, numbers_at, rule });
        op.set_arithmetic(arithmetic);
        updates.extend(apply(program, index, op, [Some(numbers), norm, scale]));
    }
    if in_backward {
        apply_in_backward(program, updates);
    } else {
        code.extend(updates);
    }
    if let (Some(choice), Some(norm)) = (config.strategy.loss_scale, norm) {
        adapt_loss_scale(program, &mut code, choice, norm);
    }
    if config.strategy.gradients == Gradients::Zero {
        for bucket in gradient_buckets(program) {
            let next = program.add_version(bucket);
            code.push(fill_with_zeros(program, bucket, next, Phase::Update));
        }
    }
    let live_in = program.section(SectionKind::First).expect("added by `build`").live_out.clone();
    let live_out = program.section(SectionKind::Start).expect("added by `build`").live_out.clone();
    let after = program.sections.iter().rposition(|section| !section.kind.is_in_evaluation());
    let section = Section { live_in, live_out, code, ..Section::new(SectionKind::Update, config) };
    program.sections.insert(after.expect("added by `build`") + 1, section);
    program.stage = Stage::Updated;
}

fn copy(queue: Queue, from: ValueId, to: ValueId, scope: ScopeId) -> Instruction {
    Instruction::new(Action::Copy { queue, from, to }, scope, Phase::Update)
}

fn gradient_buckets(program: &Program) -> Vec<ValueId> {
    program.buckets.iter().filter_map(|bucket| bucket.gradients).collect()
}

/// Puts each bucket's update after the last instruction that adds to its gradients or reads its parameters or a cast
/// of them (backward can cast again). Its gradients are no longer live-out.
fn apply_in_backward(program: &mut Program, updates: Vec<Instruction>) {
    let gradients = program.mask(&gradient_buckets(program));
    let at = program.sections.iter().position(|section| section.kind == SectionKind::First);
    let at = at.expect("added by `build`");
    program.sections[at].live_out.retain(|storage| !gradients[storage.index()]);
    let code = std::mem::take(&mut program.sections[at].code);
    let mut last_use = vec![0; program.values.len()];
    let mut cast_of: HashMap<ValueId, ValueId> = HashMap::new();
    for (index, instruction) in code.iter().enumerate() {
        let action = &instruction.action;
        for storage in action.touches().map(|id| program.storage(id)) {
            let cast = cast_of.get(&storage).copied();
            [Some(storage), cast].into_iter().flatten().for_each(|used| last_use[used.index()] = index);
        }
        if action.is_cast() {
            let [casts, originals] =
                [action.writes(), action.reads()].map(|ids| ids.iter().map(|&id| program.storage(id)));
            cast_of.extend(casts.zip(originals));
        }
    }
    let sums = Sums::of(program, &code);
    let mut updates_after: Vec<Vec<Instruction>> = vec![Vec::new(); code.len()];
    let mut last = 0;
    for mut update in updates {
        match &mut update.action {
            Action::Launch { inputs, .. } => {
                inputs.iter_mut().for_each(|input| *input = sums.of_gradients(program, *input));
                let uses = update.action.touches().map(|id| last_use[program.storage(id).index()]);
                last = uses.max().unwrap_or(0);
            }
            // Updated shares are gathered right after.
            _ => debug_assert!(update.action.collective().is_some()),
        }
        updates_after[last].push(update);
    }
    let pairs = code.into_iter().zip(updates_after);
    program.sections[at].code =
        pairs.flat_map(|(instruction, updates)| std::iter::once(instruction).chain(updates)).collect();
}

/// The sums of gradients over all ranks in a section.
struct Sums {
    of_whole: HashMap<ValueId, ValueId>,
    /// Of shares that are summed in place.
    of_share: HashMap<View, ValueId>,
}

impl Sums {
    fn of(program: &Program, code: &[Instruction]) -> Sums {
        let mut sums = Sums { of_whole: HashMap::new(), of_share: HashMap::new() };
        for instruction in code {
            let Action::Exchange { from, to, .. } = instruction.action else { continue };
            let share = program.value(to).view.filter(|view| view.of == from);
            match share {
                Some(view) => sums.of_share.insert(view, to),
                None => sums.of_whole.insert(from, to),
            };
        }
        sums
    }

    /// The sum of these gradients, if they were summed.
    fn of_gradients(&self, program: &Program, id: ValueId) -> ValueId {
        let of_share = || program.value(id).view.and_then(|view| self.of_share.get(&view));
        self.of_whole.get(&id).or_else(of_share).copied().unwrap_or(id)
    }
}

/// Adds the optimizer states of each bucket: zeros or a copy of the parameters, live from the start.
fn add_states(program: &mut Program, groups: &[UpdateGroup], annotations: &Annotations) {
    let mut values = Vec::new();
    let mut start = Vec::new();
    for bucket in program.trained() {
        let pool = annotations.bucket_pool(program.buckets[bucket].parameters, annotations.states);
        let Bucket { format, update, .. } = program.buckets[bucket];
        let states = groups[update].rule.kept(format);
        for (index, state) in states.iter().enumerate() {
            let added = add_state(program, (bucket, index), state, pool);
            values.push(added.value);
            start.push(if state.copy {
                copy_of_parameters(program, bucket, added.value)
            } else {
                fill_with_zeros(program, added.value, added.value, Phase::Start)
            });
            program.buckets[bucket].states.push(added);
        }
    }
    for section in &mut program.sections {
        section.live_out.splice(0..0, values.iter().copied());
        match section.kind {
            SectionKind::Start => section.code.extend(start.iter().cloned()),
            _ => drop(section.live_in.splice(0..0, values.iter().copied())),
        }
    }
}

/// Initialises master weights from the parameters.
fn copy_of_parameters(program: &mut Program, bucket: usize, copy: ValueId) -> Instruction {
    let Bucket { parameters, scope, .. } = program.buckets[bucket];
    let of = own_part(program, bucket, parameters);
    let op = Op::Cast(Cast { to: program.ty(copy).dtype });
    let action = Action::Launch { op, inputs: vec![of], outputs: vec![copy], workspace: None };
    Instruction::new(action, scope, Phase::Start)
}

fn add_state(
    program: &mut Program,
    (bucket, index): (usize, usize),
    state: &State,
    pool: Pool,
) -> BucketState {
    let parameters = program.value(program.buckets[bucket].parameters).clone();
    let (members, ty) = trained_members(program, bucket);
    let (members, ty) = state.layout(&members, ty);
    let (name, shape_source) = (state.name, ShapeSource::State(bucket, index));
    let role = if state.copy { Role::MasterWeight } else { Role::Optimizer };
    BucketState {
        value: program.add_like(Value { name, ty, shape_source, role, pool, ..parameters }),
        members,
    }
}

/// The norm of all gradients, also copied to the host.
fn global_norm(program: &mut Program, code: &mut Vec<Instruction>, scope: ScopeId, device: Pool) -> ValueId {
    let ty = (ShapeSource::Fixed, TensorType::scalar());
    let host_scope = program.value(program.host_buffers.results.loss).scope;
    let host = program.add_value("norm", host_scope, ty, Role::Input, Pool::Pinned);
    program.host_buffers.results.norm = Some(host);
    for section in &mut program.sections {
        section.live_out.insert(0, host);
        if section.kind != SectionKind::Start {
            section.live_in.insert(0, host);
        }
    }
    let norm = match device {
        Pool::Device => program.add_value("norm", scope, ty, Role::Activation, device),
        Pool::Host | Pool::Pinned => host,
    };
    let launch = |op: GlobalNorm, inputs: Vec<ValueId>, output: ValueId| {
        let action =
            Action::Launch { op: Op::GlobalNorm(op), inputs, outputs: vec![output], workspace: None };
        Instruction::new(action, scope, Phase::Update)
    };
    let buckets: Vec<usize> = program.trained().collect();
    let own = |bucket| {
        own_part(program, bucket, program.buckets[bucket].gradients.expect("added by differentiation"))
    };
    let gradients: Vec<ValueId> = buckets.into_iter().map(own).collect();
    let scale = program.loss_scaling.map(|scaling| scaling.scale);
    let inputs = gradients.into_iter().chain(scale).collect();
    match program.share {
        None => {
            let buckets = program.trained().map(|bucket| program.buckets[bucket].members.clone()).collect();
            code.push(launch(GlobalNorm { buckets, scaled: scale.is_some() }, inputs, norm));
        }
        // The norm of all shares' norms.
        Some(share) => {
            let buckets = program.trained().map(|bucket| trained_members(program, bucket).0).collect();
            let own = program.add_value("norm", scope, ty, Role::Activation, device);
            code.push(launch(GlobalNorm { buckets, scaled: scale.is_some() }, inputs, own));
            let ty = TensorType::f32(&[share.of]);
            let norms = program.add_value("norms", scope, (ShapeSource::Fixed, ty), Role::Activation, device);
            let gather = Action::Exchange { collective: Collective::AllGather, from: own, to: norms };
            code.push(Instruction::new(gather, scope, Phase::Update));
            let members = [Member::new(ty.shape, false, 0)].into_iter().collect();
            code.push(launch(GlobalNorm { buckets: vec![members], scaled: false }, vec![norms], norm));
        }
    }
    if norm != host {
        code.push(copy(Queue::Compute, norm, host, scope));
    }
    norm
}

/// Updates the loss scale and the step counts, and copies both to the host.
fn adapt_loss_scale(program: &mut Program, code: &mut Vec<Instruction>, choice: LossScale, norm: ValueId) {
    let op = match choice {
        LossScale::Static(_) => ops::LossScale { backoff: 1.0, growth: 1.0, interval: 1.0 },
        LossScale::Dynamic(DynamicLossScale { backoff, growth, interval, .. }) => {
            ops::LossScale { backoff: backoff as f32, growth: growth as f32, interval: interval as f32 }
        }
    };
    let LossScaling { scale, counts } =
        program.loss_scaling.expect("`dtypes` adds it if `loss_scale` is set");
    let scope = program.value(scale).scope;
    let [scale_after, counts_after] = [scale, counts].map(|id| program.add_version(id));
    let outputs = vec![scale_after, counts_after];
    let action =
        Action::Launch { op: Op::LossScale(op), inputs: vec![scale, counts, norm], outputs, workspace: None };
    code.push(Instruction::new(action, scope, Phase::Update));
    let Results { scale, counts, .. } = program.host_buffers.results;
    for (from, to) in [(scale_after, scale), (counts_after, counts)] {
        code.push(copy(Queue::Compute, from, to.expect("added with the loss scale"), scope));
    }
}

/// The parts of a bucket's members that this rank updates, and the type of its parameters.
fn trained_members(program: &Program, bucket: usize) -> (Members, TensorType) {
    let Bucket { members, whole, .. } = &program.buckets[bucket];
    match program.share {
        None => (members.clone(), program.ty(*whole)),
        Some(share) => share.part(members, program.ty(*whole)),
    }
}

/// What this rank updates of a bucket's parameters or gradients: its share, which the value may already be, or all.
fn own_part(program: &mut Program, bucket: usize, id: ValueId) -> ValueId {
    let whole = program.ty(program.buckets[bucket].whole);
    match program.share.filter(|_| program.ty(id).elements() == whole.elements()) {
        None => id,
        Some(share) => program.share_of(id, share),
    }
}

/// The optimizer step of what this rank updates of a bucket. If it updates a share of parameters that all ranks have, it
/// gets those of the others. `numbers` are step scalars, gradient norm and loss scale. With master weights, parameters are
/// only written.
fn apply(program: &mut Program, index: usize, op: Op, numbers: [Option<ValueId>; 3]) -> Vec<Instruction> {
    let bucket = program.buckets[index].clone();
    let gradients = own_part(program, index, bucket.gradients.expect("added by differentiation"));
    let own = own_part(program, index, bucket.parameters);
    let states: Vec<ValueId> = bucket.states.iter().map(|state| state.value).collect();
    let parameters = (!bucket.format.has_master()).then_some(own);
    let inputs = parameters.into_iter().chain([gradients]).chain(states.iter().copied());
    let inputs = inputs.chain(numbers.into_iter().flatten()).collect();
    let written = std::iter::once(own).chain(states);
    let outputs: Vec<ValueId> = written.map(|id| program.add_version(id)).collect();
    let from = outputs[0];
    let action = Action::Launch { op, inputs, outputs, workspace: None };
    let gather = (own != bucket.parameters).then(|| {
        let to = program.add_version(bucket.parameters);
        Action::Exchange { collective: Collective::AllGather, from, to }
    });
    let instruction = |action| Instruction::new(action, bucket.scope, Phase::Update);
    [action].into_iter().chain(gather).map(instruction).collect()
}
