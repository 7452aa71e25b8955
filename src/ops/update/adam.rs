//! Adam with L2 or decoupled weight decay (AdamW).

use super::{Elementwise, Moment, UpdateRule};
use crate::DynamicMap;

/// Adam (Kingma and Ba 2015) adds weight decay to the gradient, `g += weight_decay * p`. With `decoupled` weight decay
/// it is AdamW (Loshchilov and Hutter 2019), which first subtracts `learning_rate * weight_decay * p` from the
/// parameter. `m` and `v` are running means of the gradient and its square. The update subtracts `learning_rate * m /
/// c1 / (sqrt(v / c2) + epsilon)`, where `c = 1 - beta^t` at step `t`. States: `m` and `v`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    /// Decay rates of the moments, in f64: `1 - beta2` computed in f32 would be off by 1e-5.
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f32,
    pub weight_decay: f32,
    pub decoupled: bool,
}

impl UpdateRule for Adam {
    fn name(&self) -> &'static str {
        if self.decoupled { "adamw" } else { "adam" }
    }

    /// `c1` and `c2`.
    fn corrections(&self, step: usize) -> Vec<f64> {
        let power = i32::try_from(step).unwrap_or(i32::MAX);
        [self.beta1, self.beta2].map(|beta| 1.0 - beta.powi(power)).to_vec()
    }

    fn moments(&self) -> &'static [Moment] {
        const {
            &[
                Moment { name: "moment1", scales: "moment1.scales", map: DynamicMap::Signed },
                Moment { name: "moment2", scales: "moment2.scales", map: DynamicMap::Unsigned },
            ]
        }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }
}

impl Elementwise for Adam {
    fn exact(
        &self,
        numbers: &[f64],
        decays: bool,
        parameter: f64,
        gradient: f64,
        moments: &mut [f64],
    ) -> f64 {
        let &[learning_rate, _, correction1, correction2] = numbers else {
            panic!("a step of Adam has four numbers")
        };
        let [first, second] = moments else { panic!("Adam has two moments") };
        let weight_decay = if decays { f64::from(self.weight_decay) } else { 0.0 };
        let (l2_decay, decoupled_decay) =
            if self.decoupled { (0.0, learning_rate * weight_decay) } else { (weight_decay, 0.0) };
        let gradient = gradient + l2_decay * parameter;
        *first = self.beta1 * *first + (1.0 - self.beta1) * gradient;
        *second = self.beta2 * *second + (1.0 - self.beta2) * gradient * gradient;
        let denominator = (*second / correction2).sqrt() + f64::from(self.epsilon);
        parameter * (1.0 - decoupled_decay) - learning_rate * (*first / correction1) / denominator
    }
}
