//! Lion's step.

use super::ElementwiseStep;
use crate::cpu::kernels::simd::{Level, simd};
use ops::Lion;

/// The numbers of one step that are the same for all elements.
#[derive(Clone, Copy)]
pub(super) struct Step {
    rate: f32,
    /// What the momentum and the gradient are to the direction.
    beta1: f32,
    added1: f32,
    /// What remains of the momentum, and what the gradient adds to it.
    beta2: f32,
    added2: f32,
    /// What remains of a parameter that decays.
    kept: f32,
}

impl Step {
    pub(super) fn new(rule: &Lion, numbers: &[f32]) -> Step {
        let learning_rate = numbers[0];
        Step {
            rate: learning_rate,
            beta1: rule.beta1 as f32,
            added1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            added2: (1.0 - rule.beta2) as f32,
            kept: 1.0 - learning_rate * rule.weight_decay,
        }
    }
}

impl ElementwiseStep<1> for Step {
    fn take(
        &self,
        level: Level,
        share: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        [momentum]: [&mut [f32]; 1],
    ) {
        let step = if decays { *self } else { Step { kept: 1.0, ..*self } };
        take(level, step, share, parameters, gradients, momentum);
    }
}

simd! {
    fn take(step: Step, share: f32, parameters: &mut [f32], gradients: &[f32], momentum: &mut [f32]) {
        for ((parameter, gradient), momentum) in parameters.iter_mut().zip(gradients).zip(momentum) {
            let gradient = gradient * share;
            let direction = step.beta1 * *momentum + step.added1 * gradient;
            *momentum = step.beta2 * *momentum + step.added2 * gradient;
            // What is not a number has no sign, and must show in the parameters.
            let sign = if direction == 0.0 || direction.is_nan() { direction } else { 1f32.copysign(direction) };
            *parameter = *parameter * step.kept - step.rate * sign;
        }
    }
}
