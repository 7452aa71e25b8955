//! Adam's step.

use super::ElementwiseStep;
use crate::cpu::kernels::simd::{Level, simd};
use ops::Adam;

/// The constants of one step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    epsilon: f32,
    /// Learning rate over the first moment's bias correction.
    rate: f32,
    /// 1 over the root of the second moment's bias correction.
    correction: f32,
    /// Coupled weight decay: the fraction of a parameter that is added to its gradient.
    l2: f32,
    /// Decoupled weight decay: the factor of a parameter.
    decay_factor: f32,
}

impl Step {
    pub(super) fn new(rule: &Adam, numbers: &[f32]) -> Step {
        let &[learning_rate, _, correction1, correction2] = numbers else {
            unreachable!("the type of the step's numbers was checked")
        };
        let (l2, decay) =
            if rule.decoupled { (0.0, learning_rate * rule.weight_decay) } else { (rule.weight_decay, 0.0) };
        Step {
            beta1: rule.beta1 as f32,
            one_minus_beta1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            one_minus_beta2: (1.0 - rule.beta2) as f32,
            epsilon: rule.epsilon,
            rate: learning_rate / correction1,
            correction: 1.0 / correction2.sqrt(),
            l2,
            decay_factor: 1.0 - decay,
        }
    }
}

impl ElementwiseStep<2> for Step {
    fn apply(
        &self,
        level: Level,
        gradient_scale: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        [first, second]: [&mut [f32]; 2],
    ) {
        let step = if decays { *self } else { Step { l2: 0.0, decay_factor: 1.0, ..*self } };
        update(level, step, gradient_scale, parameters, gradients, first, second);
    }
}

simd! {
    fn update(
        step: Step,
        gradient_scale: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let len = parameters.len();
        let (gradients, first, second) = (&gradients[..len], &mut first[..len], &mut second[..len]);
        for i in 0..len {
            let gradient = gradients[i] * gradient_scale + step.l2 * parameters[i];
            let m = step.beta1 * first[i] + step.one_minus_beta1 * gradient;
            let v = step.beta2 * second[i] + step.one_minus_beta2 * gradient * gradient;
            let denominator = v.sqrt() * step.correction + step.epsilon;
            (first[i], second[i]) = (m, v);
            parameters[i] = parameters[i] * step.decay_factor - step.rate * (m / denominator);
        }
    }
}
