//! Steps of stochastic gradient descent.

use super::ElementwiseStep;
use crate::cpu::kernels::simd::{Level, simd};
use ops::Sgd;

/// Without momentum.
#[derive(Clone, Copy)]
pub(super) struct Descent {
    rate: f32,
    /// What of a parameter that decays is added to its gradient.
    added: f32,
}

impl Descent {
    pub(super) fn new(rule: &Sgd, numbers: &[f32]) -> Descent {
        Descent { rate: numbers[0], added: rule.weight_decay }
    }

    fn of(self, decays: bool) -> Descent {
        if decays { self } else { Descent { added: 0.0, ..self } }
    }
}

impl ElementwiseStep<0> for Descent {
    fn take(
        &self,
        level: Level,
        share: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        []: [&mut [f32]; 0],
    ) {
        descend(level, self.of(decays), share, parameters, gradients);
    }
}

simd! {
    fn descend(step: Descent, share: f32, parameters: &mut [f32], gradients: &[f32]) {
        for (parameter, gradient) in parameters.iter_mut().zip(gradients) {
            let gradient = gradient * share + step.added * *parameter;
            *parameter -= step.rate * gradient;
        }
    }
}

/// With momentum.
#[derive(Clone, Copy)]
pub(super) struct Roll {
    descent: Descent,
    momentum: f32,
    nesterov: bool,
}

impl Roll {
    pub(super) fn new(rule: &Sgd, numbers: &[f32]) -> Roll {
        Roll { descent: Descent::new(rule, numbers), momentum: rule.momentum, nesterov: rule.nesterov }
    }
}

impl ElementwiseStep<1> for Roll {
    fn take(
        &self,
        level: Level,
        share: f32,
        decays: bool,
        parameters: &mut [f32],
        gradients: &[f32],
        [velocities]: [&mut [f32]; 1],
    ) {
        let step = Roll { descent: self.descent.of(decays), ..*self };
        roll(level, step, share, parameters, gradients, velocities);
    }
}

simd! {
    fn roll(step: Roll, share: f32, parameters: &mut [f32], gradients: &[f32], velocities: &mut [f32]) {
        let Descent { rate, added } = step.descent;
        for ((parameter, gradient), velocity) in parameters.iter_mut().zip(gradients).zip(velocities) {
            let gradient = gradient * share + added * *parameter;
            *velocity = step.momentum * *velocity + gradient;
            let direction = if step.nesterov { gradient + step.momentum * *velocity } else { *velocity };
            *parameter -= rate * direction;
        }
    }
}
