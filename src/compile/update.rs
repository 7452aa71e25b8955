//! The optimizer: gradients measured, clipped and applied, bucket by bucket; results brought to the host.

use super::Draft;
use super::program::{Action, Instruction, Program, Section, SectionKind, Stage};
use super::sections::fill_with_zeros;
use crate::device::{Phase, Pool, Queue, Role};
use crate::graph::ScopeId;
use crate::ops::{AdamW, GlobalNorm, Op, TensorType, ValueId};
use crate::spec::{Gradients, Optimizer};

pub(super) fn update(draft: &mut Draft) {
    let config = draft.config;
    let program = &mut draft.program;
    let scope = program.add_scope("optimizer");
    add_moments(program);
    let first = program.section(SectionKind::First).expect("build makes it");
    let loss = *first.exit.last().expect("differentiation carries the loss");

    let mut code = Vec::new();
    let exchange = program.exchange;
    let control =
        program.add_value("control", scope, program.ty(exchange.control), Role::Input, Pool::Device);
    code.push(copy(Queue::Copy, exchange.control, control, scope));
    code.push(copy(Queue::Compute, loss, exchange.loss, scope));
    let clip_norm = config.train.clip_norm.map(|clip| clip as f32);
    let norm = clip_norm.map(|_| global_norm(program, &mut code, scope));
    let Optimizer::AdamW(optimizer) = &config.train.optimizer;
    for index in 0..program.buckets.len() {
        let op = Op::AdamW(AdamW {
            segments: program.buckets[index].segments.clone(),
            beta1: optimizer.beta1,
            beta2: optimizer.beta2,
            epsilon: optimizer.epsilon as f32,
            weight_decay: optimizer.weight_decay as f32,
            clip_norm,
        });
        code.push(apply(program, index, op, control, norm));
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
    let section = Section { kind: SectionKind::Update, entry, exit, code };
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
        let (scope, ty) = (program.buckets[index].scope, program.ty(program.buckets[index].parameters));
        let pair = ["moment1", "moment2"]
            .map(|name| program.add_value(name, scope, ty, Role::Optimizer, Pool::Device));
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
    let inputs = gradient_buckets(program);
    let ty = TensorType::f32(&[1]);
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
    let op = Op::GlobalNorm(GlobalNorm { buckets });
    let action = Action::Launch { op, inputs, outputs: vec![norm], workspace: None };
    code.push(Instruction::new(action, scope, Phase::Update));
    code.push(copy(Queue::Compute, norm, host, scope));
    norm
}

/// The optimizer's work on one bucket.
fn apply(
    program: &mut Program,
    bucket: usize,
    op: Op,
    control: ValueId,
    norm: Option<ValueId>,
) -> Instruction {
    let bucket = program.buckets[bucket].clone();
    let gradients = bucket.gradients.expect("differentiation makes them");
    let [moment1, moment2] = bucket.moments.expect("just made");
    let mut inputs = vec![bucket.parameters, gradients, moment1, moment2, control];
    inputs.extend(norm);
    let outputs = [bucket.parameters, moment1, moment2].map(|id| program.add_version(id)).to_vec();
    let action = Action::Launch { op, inputs, outputs, workspace: None };
    Instruction::new(action, bucket.scope, Phase::Update)
}
