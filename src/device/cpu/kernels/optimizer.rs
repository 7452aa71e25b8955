//! What happens to whole buckets of gradients and parameters at the end of a step.

use std::ops::Range;

use crate::ops::{AdamW, AdamWNumbers, DynamicMap, GlobalNorm, GradientTerms, Member, Sgd, Update as _};

use super::as_f64;
use super::float::{BUFFER, read, with_float};
use super::operands::Operands;
use super::simd::simd;
use super::states::States;
use super::weights::Weights;
use super::workers::{Parts, Workers};

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// Runs of at most `len` elements, none of them over the end of a member.
fn runs(members: &[Member], len: usize) -> impl Iterator<Item = (&Member, Range<usize>)> {
    members.iter().flat_map(move |member| {
        let end = member.offset + member.elements();
        (member.offset..end).step_by(len).map(move |start| (member, start..end.min(start + len)))
    })
}

/// Which of `shares` tasks takes each of many runs: in turn, so that no list of them is needed.
fn in_turn<T>(runs: impl Iterator<Item = T>, index: usize, shares: usize) -> impl Iterator<Item = T> {
    runs.skip(index).step_by(shares)
}

pub(super) fn global_norm(op: &GlobalNorm, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let runs = || {
        let buckets = op.buckets.iter().enumerate();
        buckets.flat_map(|(bucket, members)| {
            runs(members, GlobalNorm::ELEMENTS_PER_PARTIAL).map(move |(_, range)| (bucket, range))
        })
    };
    let partials = &mut as_f64(scratch)[..runs().count()];
    let parts = Parts::new(partials);
    workers.each(workers.threads(), |index| {
        for (partial, (bucket, range)) in in_turn(runs().enumerate(), index, workers.threads()) {
            // SAFETY: each run has a partial sum of its own.
            #[allow(unsafe_code)]
            let sum = unsafe { parts.part(partial..partial + 1) };
            sum[0] = 0.0;
            with_float!(operands.input_type(bucket).dtype, G => {
                read(workers.level(), &operands.input::<G>(bucket)[range], &mut [0.0; BUFFER], |_, numbers| {
                    sum[0] += sum_of_squares(workers.level(), numbers);
                });
            });
        }
    });
    let scale = if op.scaled { operands.input::<f32>(op.buckets.len())[0] } else { 1.0 };
    operands.output(0)[0] = (partials.iter().sum::<f64>().sqrt() / f64::from(scale)) as f32;
}

simd! {
    fn sum_of_squares(values: &[f32]) -> f64 {
        let mut lanes = [0.0f64; 16];
        let (whole, rest) = values.as_chunks::<16>();
        for chunk in whole {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(value) * f64::from(value);
        }
        lanes.iter().sum()
    }
}

/// The numbers of one update that are the same for all elements.
#[derive(Clone, Copy)]
struct Update {
    /// What remains of the moments, and what the gradient and its square add to them.
    beta1: f32,
    added1: f32,
    beta2: f32,
    added2: f32,
    epsilon: f32,
    share: f32,
    /// Learning rate over the first moment's bias correction.
    rate: f32,
    /// 1 over the root of the second moment's bias correction.
    correction: f32,
    /// What remains of a parameter that decays.
    decay: f32,
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

impl Update {
    fn new(op: &AdamW, numbers: AdamWNumbers, share: f32) -> Update {
        Update {
            beta1: op.beta1 as f32,
            added1: (1.0 - op.beta1) as f32,
            beta2: op.beta2 as f32,
            added2: (1.0 - op.beta2) as f32,
            epsilon: op.epsilon,
            share,
            rate: numbers.learning_rate / numbers.bias_correction1,
            correction: 1.0 / numbers.bias_correction2.sqrt(),
            decay: 1.0 - numbers.learning_rate * op.weight_decay,
        }
    }
}

fn leave_out(members: &[Member], weights: &Weights, workers: &Workers) {
    workers.each(workers.threads(), |index| {
        for (_, range) in in_turn(runs(members, CHUNK), index, workers.threads()) {
            // SAFETY: runs do not overlap.
            #[allow(unsafe_code)]
            unsafe {
                weights.keep(workers.level(), range);
            }
        }
    });
}

pub(super) fn adamw(op: &AdamW, operands: &mut Operands, workers: &Workers) {
    let at = op.numbers_input();
    let numbers = operands.input(at).try_into().expect("the type of the step's numbers was checked");
    let numbers = AdamWNumbers::from_array(numbers);
    let weights = Weights::new(op, numbers.step, operands);
    let Some(share) = share(&op.gradients, operands, at + 1) else {
        return leave_out(&op.gradients.members, &weights, workers);
    };
    let update = Update::new(op, numbers, share);
    let states =
        States::new(op.format.states, [DynamicMap::Signed, DynamicMap::Unsigned], numbers.step, operands);
    workers.each(workers.threads(), |index| {
        for (member, range) in in_turn(runs(&op.gradients.members, CHUNK), index, workers.threads()) {
            let update = Update { decay: if member.decay { update.decay } else { 1.0 }, ..update };
            let work = |piece: Range<usize>, [first, second]: [&mut [f32]; 2]| {
                let step = |run: Range<usize>, parameters: &mut [f32], gradients: &[f32]| {
                    let (first, second) = (&mut first[run.clone()], &mut second[run]);
                    step(workers.level(), update, parameters, gradients, first, second);
                };
                // SAFETY: runs do not overlap, nor do their pieces.
                #[allow(unsafe_code)]
                unsafe {
                    weights.update(workers.level(), member, piece, step);
                }
            };
            // SAFETY: as above.
            #[allow(unsafe_code)]
            unsafe {
                states.update(workers.level(), member, range, work);
            }
        }
    });
}

simd! {
    fn step(update: Update, parameters: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32]) {
        let len = parameters.len();
        let (gradients, first, second) = (&gradients[..len], &mut first[..len], &mut second[..len]);
        for i in 0..len {
            let gradient = gradients[i] * update.share;
            let m = update.beta1 * first[i] + update.added1 * gradient;
            let v = update.beta2 * second[i] + update.added2 * gradient * gradient;
            let denominator = v.sqrt() * update.correction + update.epsilon;
            (first[i], second[i]) = (m, v);
            parameters[i] = parameters[i] * update.decay - update.rate * (m / denominator);
        }
    }
}

/// The numbers of one update that are the same for all elements.
#[derive(Clone, Copy)]
struct Descent {
    share: f32,
    rate: f32,
    momentum: f32,
    nesterov: bool,
    /// What of a parameter that decays is added to its gradient.
    decay: f32,
}

pub(super) fn sgd(op: &Sgd, operands: &mut Operands, workers: &Workers) {
    let at = op.numbers_input();
    let &[rate, number] = operands.input::<f32>(at) else {
        unreachable!("the type of the step's numbers was checked")
    };
    let weights = Weights::new(op, number, operands);
    let Some(share) = share(&op.gradients, operands, at + 1) else {
        return leave_out(&op.gradients.members, &weights, workers);
    };
    let Sgd { momentum, nesterov, weight_decay, .. } = *op;
    let velocities =
        (momentum != 0.0).then(|| States::new(op.format.states, [DynamicMap::Signed], number, operands));
    workers.each(workers.threads(), |index| {
        for (member, range) in in_turn(runs(&op.gradients.members, CHUNK), index, workers.threads()) {
            let decay = if member.decay { weight_decay } else { 0.0 };
            let descent = Descent { share, rate, momentum, nesterov, decay };
            let Some(velocities) = &velocities else {
                let step = |_, parameters: &mut [f32], gradients: &[f32]| {
                    descend(workers.level(), descent, parameters, gradients);
                };
                // SAFETY: runs do not overlap.
                #[allow(unsafe_code)]
                unsafe {
                    weights.update(workers.level(), member, range, step);
                }
                continue;
            };
            let work = |piece: Range<usize>, [velocities]: [&mut [f32]; 1]| {
                let step = |run: Range<usize>, parameters: &mut [f32], gradients: &[f32]| {
                    roll(workers.level(), descent, parameters, gradients, &mut velocities[run]);
                };
                // SAFETY: runs do not overlap, nor do their pieces.
                #[allow(unsafe_code)]
                unsafe {
                    weights.update(workers.level(), member, piece, step);
                }
            };
            // SAFETY: as above.
            #[allow(unsafe_code)]
            unsafe {
                velocities.update(workers.level(), member, range, work);
            }
        }
    });
}

simd! {
    fn descend(descent: Descent, parameters: &mut [f32], gradients: &[f32]) {
        for (parameter, gradient) in parameters.iter_mut().zip(gradients) {
            let gradient = gradient * descent.share + descent.decay * *parameter;
            *parameter -= descent.rate * gradient;
        }
    }
}

simd! {
    fn roll(descent: Descent, parameters: &mut [f32], gradients: &[f32], velocities: &mut [f32]) {
        for ((parameter, gradient), velocity) in parameters.iter_mut().zip(gradients).zip(velocities) {
            let gradient = gradient * descent.share + descent.decay * *parameter;
            *velocity = descent.momentum * *velocity + gradient;
            let step = if descent.nesterov { gradient + descent.momentum * *velocity } else { *velocity };
            *parameter -= descent.rate * step;
        }
    }
}
