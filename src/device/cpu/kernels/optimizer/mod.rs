//! Optimizer steps on whole buckets of parameters. Each update rule has its own file.

mod adafactor;
mod adam;
mod lion;
mod muon;
mod sgd;

use std::ops::Range;

use super::bucket_chunks::{member_chunks, round_robin};
use super::operands::Operands;
use super::simd::Level;
use super::states::States;
use super::weights::Weights;
use super::workers::Workers;
use ops::{GradientTerms, Member, OptimizerStep, Rule};

/// Elements per chunk.
const CHUNK: usize = 1 << 14;

pub(super) fn update(op: &OptimizerStep, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let numbers = numbers(op, operands);
    match &op.rule {
        Rule::Adafactor(rule) => adafactor::update(op, rule, numbers, operands, scratch, workers),
        Rule::Adam(rule) => update_elementwise(op, &adam::Step::new(rule, numbers), operands, workers),
        Rule::Lion(rule) => update_elementwise(op, &lion::Step::new(rule, numbers), operands, workers),
        Rule::Muon(rule) => muon::update(op, rule, numbers, operands, scratch, workers),
        Rule::Sgd(rule) if rule.momentum == 0.0 => {
            update_elementwise(op, &sgd::PlainStep::new(rule, numbers), operands, workers);
        }
        Rule::Sgd(rule) => update_elementwise(op, &sgd::MomentumStep::new(rule, numbers), operands, workers),
    }
}

/// The numbers of the step that belong to the operation's update rule, such as the learning rate.
fn numbers<'a>(op: &OptimizerStep, operands: &Operands<'a>) -> &'a [f32] {
    &operands.input(op.numbers_input())[op.numbers_at..][..op.rule.numbers_len()]
}

/// One step of an elementwise update rule with `N` moments.
trait ElementwiseStep<const N: usize>: Sync {
    /// Updates parameters and moments. Gradients are first multiplied by `gradient_scale`; `decays` is whether weight
    /// decay applies. All slices have the same length.
    fn apply(
        &self,
        level: Level,
        gradient_scale: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        moments: [&mut [f32]; N],
    );
}

fn update_elementwise<const N: usize>(
    op: &OptimizerStep,
    step: &impl ElementwiseStep<N>,
    operands: &mut Operands,
    workers: &Workers,
) {
    let (members, level, numbers_input) = (&op.gradients.members, workers.level(), op.numbers_input());
    let step_number = numbers(op, operands)[1];
    let weights = Weights::new(op, step_number, operands);
    let Some(gradient_scale) = gradient_scale(&op.gradients, operands, numbers_input + 1) else {
        return skip_step(members, &weights, workers);
    };
    let states = States::<N>::new(op, step_number, operands);
    for_each_chunk(members, workers, |member, chunk| {
        let work = |piece: Range<usize>, mut moments: [&mut [f32]; N]| {
            let work = |range: Range<usize>, parameters: &mut [f32], gradients: &[f32]| {
                let moments = moments.each_mut().map(|moments| &mut moments[range.clone()]);
                step.apply(level, gradient_scale, member.decay, parameters, gradients, moments);
            };
            // SAFETY: chunks do not overlap, nor do their pieces.
            #[allow(unsafe_code)]
            unsafe {
                weights.update(level, member, piece, work);
            }
        };
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            states.update(level, member, chunk, work);
        }
    });
}

/// Skips a step: only writes parameters from their master weights.
fn skip_step(members: &[Member], weights: &Weights, workers: &Workers) {
    for_each_chunk(members, workers, |_, chunk| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        unsafe {
            weights.copy_from_master(workers.level(), chunk);
        }
    });
}

/// Calls `work` for each chunk of the members' elements, in parallel.
fn for_each_chunk(members: &[Member], workers: &Workers, work: impl Fn(&Member, Range<usize>) + Sync) {
    workers.for_each(workers.threads(), |index| {
        let chunks = round_robin(member_chunks(members, CHUNK), index, workers.threads());
        chunks.for_each(|(member, chunk)| work(member, chunk));
    });
}

/// The factor of each gradient: that of clipping, divided by the loss scale. `None` if the step is skipped. `norm` is
/// the input index of the norm, which the loss scale follows, if the operation has them.
fn gradient_scale(gradients: &GradientTerms, operands: &Operands, norm: usize) -> Option<f32> {
    if !gradients.need_norm() {
        return Some(1.0);
    }
    let scale = if gradients.scaled { operands.input::<f32>(norm + 1)[0] } else { 1.0 };
    let norm = operands.input::<f32>(norm)[0];
    if gradients.scaled && !norm.is_finite() {
        return None;
    }
    let clip = gradients.clip_norm.map_or(1.0, |clip| {
        let ratio = clip / (norm + 1e-6);
        // A NaN norm must propagate to the parameters.
        if ratio > 1.0 { 1.0 } else { ratio }
    });
    Some(clip / scale)
}
