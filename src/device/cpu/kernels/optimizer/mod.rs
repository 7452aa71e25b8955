//! Updates of whole buckets of parameters: a file for what each rule does.

mod adafactor;
mod adam;
mod lion;
mod muon;
mod sgd;

use std::ops::Range;

use super::operands::Operands;
use super::runs::{in_turn, runs};
use super::simd::Level;
use super::states::States;
use super::weights::Weights;
use super::workers::Workers;
use ops::{GradientTerms, Member, OptimizerStep, Rule};

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

pub(super) fn update(op: &OptimizerStep, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let numbers = numbers(op, operands);
    match &op.rule {
        Rule::Adafactor(rule) => adafactor::update(op, rule, numbers, operands, scratch, workers),
        Rule::Adam(rule) => each_element(op, &adam::Step::new(rule, numbers), operands, workers),
        Rule::Lion(rule) => each_element(op, &lion::Step::new(rule, numbers), operands, workers),
        Rule::Muon(rule) => muon::update(op, rule, numbers, operands, scratch, workers),
        Rule::Sgd(rule) if rule.momentum == 0.0 => {
            each_element(op, &sgd::Descent::new(rule, numbers), operands, workers);
        }
        Rule::Sgd(rule) => each_element(op, &sgd::Roll::new(rule, numbers), operands, workers),
    }
}

/// Those of the step that are its rule's.
fn numbers<'a>(op: &OptimizerStep, operands: &Operands<'a>) -> &'a [f32] {
    &operands.input(op.numbers_input())[op.numbers_at..][..op.rule.numbers_len()]
}

/// What a rule does in one step to parameters and the `N` moments of each.
trait ElementwiseStep<const N: usize>: Sync {
    /// Gradients count this share of themselves; weight decay may apply. All slices are as long.
    fn take(
        &self,
        level: Level,
        share: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        moments: [&mut [f32]; N],
    );
}

fn each_element<const N: usize>(
    op: &OptimizerStep,
    step: &impl ElementwiseStep<N>,
    operands: &mut Operands,
    workers: &Workers,
) {
    let (members, level, at) = (&op.gradients.members, workers.level(), op.numbers_input());
    let number = numbers(op, operands)[1];
    let weights = Weights::new(op, number, operands);
    let Some(share) = share(&op.gradients, operands, at + 1) else {
        return leave_out(members, &weights, workers);
    };
    let states = States::<N>::new(op, number, operands);
    each_run(members, workers, |member, run| {
        let work = |piece: Range<usize>, mut moments: [&mut [f32]; N]| {
            let work = |part: Range<usize>, parameters: &mut [f32], gradients: &[f32]| {
                let moments = moments.each_mut().map(|moments| &mut moments[part.clone()]);
                step.take(level, share, member.decay, parameters, gradients, moments);
            };
            // SAFETY: runs do not overlap, nor do their pieces.
            #[allow(unsafe_code)]
            unsafe {
                weights.update(level, member, piece, work);
            }
        };
        // SAFETY: as above.
        #[allow(unsafe_code)]
        unsafe {
            states.update(level, member, run, work);
        }
    });
}

/// A step that is left out.
fn leave_out(members: &[Member], weights: &Weights, workers: &Workers) {
    each_run(members, workers, |_, run| {
        // SAFETY: runs do not overlap.
        #[allow(unsafe_code)]
        unsafe {
            weights.keep(workers.level(), run);
        }
    });
}

/// Calls `work` for runs of the members' elements, each by one of the threads.
fn each_run(members: &[Member], workers: &Workers, work: impl Fn(&Member, Range<usize>) + Sync) {
    workers.each(workers.threads(), |index| {
        in_turn(runs(members, CHUNK), index, workers.threads()).for_each(|(member, run)| work(member, run));
    });
}

/// What each gradient is multiplied by: what clipping leaves of it, over the loss scale. `None` if the step is left out.
/// Norm and loss scale are the inputs from `norm` on, as far as they are there.
fn share(gradients: &GradientTerms, operands: &Operands, norm: usize) -> Option<f32> {
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
        // A norm that is not a number must show in the parameters.
        if ratio > 1.0 { 1.0 } else { ratio }
    });
    Some(clip / scale)
}
