//! Lion's step.

use super::ElementwiseStep;
use crate::cpu::kernels::simd::{Level, simd};
use ops::Lion;

/// The constants of one step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    rate: f32,
    /// Weights of the momentum and the gradient in the direction.
    beta1: f32,
    one_minus_beta1: f32,
    /// Weights of the momentum and the gradient in the new momentum.
    beta2: f32,
    one_minus_beta2: f32,
    /// Weight decay: the factor of a parameter.
    decay_factor: f32,
}

impl Step {
    pub(super) fn new(rule: &Lion, numbers: &[f32]) -> Step {
        let learning_rate = numbers[0];
        Step {
            rate: learning_rate,
            beta1: rule.beta1 as f32,
            one_minus_beta1: (1.0 - rule.beta1) as f32,
            beta2: rule.beta2 as f32,
            one_minus_beta2: (1.0 - rule.beta2) as f32,
            decay_factor: 1.0 - learning_rate * rule.weight_decay,
        }
    }
}

impl ElementwiseStep<1> for Step {
    fn apply(
        &self,
        level: Level,
        gradient_scale: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        [momentum]: [&mut [f32]; 1],
    ) {
        let step = if decays { *self } else { Step { decay_factor: 1.0, ..*self } };
        update(level, step, gradient_scale, parameters, gradients, momentum);
    }
}

simd! {
    fn update(step: Step, gradient_scale: f32, parameters: &mut [f32], gradients: &[f32], momentum: &mut [f32]) {
        for ((parameter, gradient), momentum) in parameters.iter_mut().zip(gradients).zip(momentum) {
            let gradient = gradient * gradient_scale;
            let direction = step.beta1 * *momentum + step.one_minus_beta1 * gradient;
            *momentum = step.beta2 * *momentum + step.one_minus_beta2 * gradient;
            // NaN must propagate to the parameters.
            let sign = if direction == 0.0 || direction.is_nan() { direction } else { 1f32.copysign(direction) };
            *parameter = *parameter * step.decay_factor - step.rate * sign;
        }
    }
}
