//! Stochastic gradient descent.

use super::{Elementwise, Moment, UpdateRule};
use crate::DynamicMap;

/// Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov momentum (Sutskever et al. 2013) as PyTorch
/// computes them. Weight decay is added to the gradient: `g += weight_decay * p`. With momentum, `v = momentum * v +
/// g`; the update subtracts `learning_rate * v`, or with `nesterov` `learning_rate * (g + momentum * v)`. State: `v`,
/// if there is momentum.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    pub momentum: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
}

impl UpdateRule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn moments(&self) -> &'static [Moment] {
        const MOMENTUM: Moment =
            Moment { name: "momentum", scales: "momentum.scales", map: DynamicMap::Signed };
        if self.momentum == 0.0 { &[] } else { const { &[MOMENTUM] } }
    }

    fn elementwise(&self) -> Option<&dyn Elementwise> {
        Some(self)
    }
}

impl Elementwise for Sgd {
    fn exact(
        &self,
        numbers: &[f64],
        decays: bool,
        parameter: f64,
        gradient: f64,
        moments: &mut [f64],
    ) -> f64 {
        let momentum = f64::from(self.momentum);
        let weight_decay = if decays { f64::from(self.weight_decay) } else { 0.0 };
        let gradient = gradient + weight_decay * parameter;
        let step = match moments {
            [velocity] => {
                *velocity = momentum * *velocity + gradient;
                if self.nesterov { gradient + momentum * *velocity } else { *velocity }
            }
            _ => gradient,
        };
        parameter - numbers[0] * step
    }
}
