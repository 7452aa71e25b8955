//! The optimizer: gradients measured, clipped and applied, bucket by bucket; results brought to the host.

use super::Draft;
use super::program::{Action, Instruction, Like, LossScaling, Program, Section, SectionKind, Stage, Value};
use super::sections::fill_with_zeros;
use crate::device::{Phase, Pool, Queue, Role};
use crate::graph::ScopeId;
use crate::ops::{self, GlobalNorm, Op, TensorType, ValueId};
use crate::spec::{DynamicLossScale, Gradients, LossScale};

pub(super) fn update(draft: &mut Draft) {
    let config = draft.config;
    let program = &mut draft.program;
    let scope = program.add_scope("optimizer");
    add_moments(program);
    let first = program.section(SectionKind::First).expect("build makes it");
    let loss = *first.exit.last().expect("differentiation carries the loss");

    let mut code = Vec::new();
    let exchange = program.exchange;
    let host = program.value(exchange.control).clone();
    let control = program.add_like(Value { scope, pool: Pool::Device, ..host });
    code.push(copy(Queue::Copy, exchange.control, control, scope));
    code.push(copy(Queue::Compute, loss, exchange.loss, scope));
    let clip_norm = config.train.clip_norm.map(|clip| clip as f32);
    let scale = program.loss_scaling.map(|scaling| scaling.scale);
    let norm = (clip_norm.is_some() || scale.is_some()).then(|| global_norm(program, &mut code, scope));
    for index in 0..program.buckets.len() {
        let segments = program.buckets[index].segments.clone();
        let op = config.train.optimizer.operation(segments, clip_norm, scale.is_some());
        code.push(apply(program, index, op, [Some(control), norm, scale]));
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
    let entry = program.section(SectionKind::First).expect("build makes it").exit.clone();
    let exit = program.section(SectionKind::Start).expect("build makes it").exit.clone();
    let after = program.sections.iter().rposition(|section| section.kind != SectionKind::Evaluation);
    let section = Section { kind: SectionKind::Update, entry, exit, code, segments: Vec::new() };
    program.sections.insert(after.expect("build makes it") + 1, section);
    program.stage = Stage::Updated;
}

fn copy(queue: Queue, from: ValueId, to: ValueId, scope: ScopeId) -> Instruction {
    Instruction::new(Action::Copy { queue, from, to }, scope, Phase::Update)
}

fn gradient_buckets(program: &Program) -> Vec<ValueId> {
    program.buckets.iter().filter_map(|bucket| bucket.gradients).collect()
}

/// First and second moments, zero from the start and there all the time.
fn add_moments(program: &mut Program) {
    let mut moments = Vec::with_capacity(2 * program.buckets.len());
    for index in 0..program.buckets.len() {
        let parameters = program.value(program.buckets[index].parameters).clone();
        let pair = ["moment1", "moment2"]
            .map(|name| program.add_like(Value { name, role: Role::Optimizer, ..parameters.clone() }));
        program.buckets[index].moments = Some(pair);
        moments.extend(pair);
    }
    let zeros: Vec<Instruction> =
        moments.iter().map(|&moment| fill_with_zeros(program, moment, moment, Phase::Start)).collect();
    for section in &mut program.sections {
        section.exit.splice(0..0, moments.iter().copied());
        match section.kind {
            SectionKind::Start => section.code.extend(zeros.iter().cloned()),
            _ => drop(section.entry.splice(0..0, moments.iter().copied())),
        }
    }
}

/// The norm of all gradients, brought to the host as well.
fn global_norm(program: &mut Program, code: &mut Vec<Instruction>, scope: ScopeId) -> ValueId {
    let buckets = program.buckets.iter().map(|bucket| bucket.segments.clone()).collect();
    let scale = program.loss_scaling.map(|scaling| scaling.scale);
    let inputs = gradient_buckets(program).into_iter().chain(scale).collect();
    let ty = (Like::Fixed, TensorType::scalar());
    let norm = program.add_value("norm", scope, ty, Role::Activation, Pool::Device);
    let host_scope = program.value(program.exchange.loss).scope;
    let host = program.add_value("norm", host_scope, ty, Role::Input, Pool::Host);
    program.exchange.norm = Some(host);
    for section in &mut program.sections {
        section.exit.insert(0, host);
        if section.kind != SectionKind::Start {
            section.entry.insert(0, host);
        }
    }
    let op = Op::GlobalNorm(GlobalNorm { buckets, scaled: scale.is_some() });
    let action = Action::Launch { op, inputs, outputs: vec![norm], workspace: None };
    code.push(Instruction::new(action, scope, Phase::Update));
    code.push(copy(Queue::Compute, norm, host, scope));
    norm
}

/// The scale for the next step, and what became of this one; both are brought to the host.
fn adapt_loss_scale(program: &mut Program, code: &mut Vec<Instruction>, choice: LossScale, norm: ValueId) {
    let op = match choice {
        LossScale::Static(_) => ops::LossScale { backoff: 1.0, growth: 1.0, interval: 1.0 },
        LossScale::Dynamic(DynamicLossScale { backoff, growth, interval, .. }) => {
            ops::LossScale { backoff: backoff as f32, growth: growth as f32, interval: interval as f32 }
        }
    };
    let LossScaling { scale, counts, host_scale, host_counts } =
        program.loss_scaling.expect("compilation makes it where there is a choice");
    let scope = program.value(scale).scope;
    let [scale_after, counts_after] = [scale, counts].map(|id| program.add_version(id));
    let outputs = vec![scale_after, counts_after];
    let action =
        Action::Launch { op: Op::LossScale(op), inputs: vec![scale, counts, norm], outputs, workspace: None };
    code.push(Instruction::new(action, scope, Phase::Update));
    code.push(copy(Queue::Compute, scale_after, host_scale, scope));
    code.push(copy(Queue::Compute, counts_after, host_counts, scope));
}

/// The optimizer's work on one bucket; `numbers` are what steers it.
fn apply(program: &mut Program, bucket: usize, op: Op, numbers: [Option<ValueId>; 3]) -> Instruction {
    let bucket = program.buckets[bucket].clone();
    let gradients = bucket.gradients.expect("differentiation makes them");
    let [moment1, moment2] = bucket.moments.expect("just made");
    let mut inputs = vec![bucket.parameters, gradients, moment1, moment2];
    inputs.extend(numbers.into_iter().flatten());
    let outputs = [bucket.parameters, moment1, moment2].map(|id| program.add_version(id)).to_vec();
    let action = Action::Launch { op, inputs, outputs, workspace: None };
    Instruction::new(action, bucket.scope, Phase::Update)
}
