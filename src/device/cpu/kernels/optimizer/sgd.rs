//! Steps of stochastic gradient descent.

use super::ElementwiseStep;
use crate::cpu::kernels::simd::{Level, simd};
use ops::Sgd;

/// A step without momentum.
#[derive(Clone, Copy)]
pub(super) struct PlainStep {
    rate: f32,
    /// Weight decay: the fraction of a parameter that is added to its gradient.
    l2: f32,
}

impl PlainStep {
    pub(super) fn new(rule: &Sgd, numbers: &[f32]) -> PlainStep {
        PlainStep { rate: numbers[0], l2: rule.weight_decay }
    }

    fn with_decay(self, decays: bool) -> PlainStep {
        if decays { self } else { PlainStep { l2: 0.0, ..self } }
    }
}

impl ElementwiseStep<0> for PlainStep {
    fn apply(
        &self,
        level: Level,
        gradient_scale: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        []: [&mut [f32]; 0],
    ) {
        update(level, self.with_decay(decays), gradient_scale, parameters, gradients);
    }
}

simd! {
    fn update(step: PlainStep, gradient_scale: f32, parameters: &mut [f32], gradients: &[f32]) {
        for (parameter, gradient) in parameters.iter_mut().zip(gradients) {
            let gradient = gradient * gradient_scale + step.l2 * *parameter;
            *parameter -= step.rate * gradient;
        }
    }
}

/// A step with momentum.
#[derive(Clone, Copy)]
pub(super) struct MomentumStep {
    plain: PlainStep,
    momentum: f32,
    nesterov: bool,
}

impl MomentumStep {
    pub(super) fn new(rule: &Sgd, numbers: &[f32]) -> MomentumStep {
        MomentumStep {
            plain: PlainStep::new(rule, numbers),
            momentum: rule.momentum,
            nesterov: rule.nesterov,
        }
    }
}

impl ElementwiseStep<1> for MomentumStep {
    fn apply(
        &self,
        level: Level,
        gradient_scale: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        [velocities]: [&mut [f32]; 1],
    ) {
        let step = MomentumStep { plain: self.plain.with_decay(decays), ..*self };
        update_with_momentum(level, step, gradient_scale, parameters, gradients, velocities);
    }
}

simd! {
    fn update_with_momentum(
        step: MomentumStep,
        gradient_scale: f32,
        parameters: &mut [f32],
        gradients: &[f32],
        velocities: &mut [f32],
    ) {
        let PlainStep { rate, l2 } = step.plain;
        for ((parameter, gradient), velocity) in parameters.iter_mut().zip(gradients).zip(velocities) {
            let gradient = gradient * gradient_scale + l2 * *parameter;
            *velocity = step.momentum * *velocity + gradient;
            let direction = if step.nesterov { gradient + step.momentum * *velocity } else { *velocity };
            *parameter -= rate * direction;
        }
    }
}
