//! Adam's step.

use super::ElementwiseStep;
use crate::cpu::kernels::simd::{Level, simd};
use ops::Adam;

/// The numbers of one step that are the same for all elements.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// What remains of the moments, and what the gradient and its square add to them.
    beta1: f32,
    added1: f32,
    beta2: f32,
    added2: f32,
    epsilon: f32,
    /// Learning rate over the first moment's bias correction.
    rate: f32,
    /// 1 over the root of the second moment's bias correction.
    correction: f32,
    /// What of a parameter is added to its gradient, and what remains of it besides, where it decays.
    added: f32,
    kept: f32,
}

impl Step {
    pub(super) fn new(rule: &Adam, numbers: &[f32]) -> Step {
        let &[learning_rate, _, correction1, correction2] = numbers else {
            unreachable!("the type of the step's numbers was checked")
        };
        let (added, taken) =
            if rule.decoupled { (0.0, learning_rate * rule.weight_decay) } else { (rule.weight_decay, 0.0) };
        Step {
            beta1: rule.beta1 as f32,
            added1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            added2: (1.0 - rule.beta2) as f32,
            epsilon: rule.epsilon,
            rate: learning_rate / correction1,
            correction: 1.0 / correction2.sqrt(),
            added,
            kept: 1.0 - taken,
        }
    }
}

impl ElementwiseStep<2> for Step {
    fn take(
        &self,
        level: Level,
        share: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        [first, second]: [&mut [f32]; 2],
    ) {
        let step = if decays { *self } else { Step { added: 0.0, kept: 1.0, ..*self } };
        take(level, step, share, parameters, gradients, first, second);
    }
}

simd! {
    fn take(
        step: Step,
        share: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let len = parameters.len();
        let (gradients, first, second) = (&gradients[..len], &mut first[..len], &mut second[..len]);
        for i in 0..len {
            let gradient = gradients[i] * share + step.added * parameters[i];
            let m = step.beta1 * first[i] + step.added1 * gradient;
            let v = step.beta2 * second[i] + step.added2 * gradient * gradient;
            let denominator = v.sqrt() * step.correction + step.epsilon;
            (first[i], second[i]) = (m, v);
            parameters[i] = parameters[i] * step.kept - step.rate * (m / denominator);
        }
    }
}
