//! Lion: the sign of a momentum.

use super::{Elementwise, Moment, UpdateRule};
use crate::DynamicMap;

/// EvoLved Sign Momentum (Chen et al. 2023). The parameter is first multiplied by `1 - learning_rate * weight_decay`;
/// then `learning_rate * sign(beta1 * m + (1 - beta1) * g)` is subtracted, with `sign(0) = 0`. The momentum becomes `m
/// = beta2 * m + (1 - beta2) * g`. State: `m`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lion {
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f32,
}

impl UpdateRule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn moments(&self) -> &'static [Moment] {
        const { &[Moment { name: "momentum", scales: "momentum.scales", map: DynamicMap::Signed }] }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }
}

impl Elementwise for Lion {
    fn exact(
        &self,
        numbers: &[f64],
        decays: bool,
        parameter: f64,
        gradient: f64,
        moments: &mut [f64],
    ) -> f64 {
        let learning_rate = numbers[0];
        let weight_decay = if decays { f64::from(self.weight_decay) } else { 0.0 };
        let [momentum] = moments else { panic!("Lion has one moment") };
        let direction = self.beta1 * *momentum + (1.0 - self.beta1) * gradient;
        *momentum = self.beta2 * *momentum + (1.0 - self.beta2) * gradient;
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        parameter * (1.0 - learning_rate * weight_decay) - learning_rate * sign
    }
}
