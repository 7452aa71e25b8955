//! Stochastic gradient descent.

use super::{GradientTerms, Op, State, Update};

/// Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's (Sutskever et al. 2013) as PyTorch computes
/// them. Weight decay is added to the gradient: `g += weight_decay * p`. With momentum, `v = momentum * v + g`, and the
/// parameter takes `v`, or with `nesterov` `g + momentum * v`, times the learning rate. State: `v`, if there is momentum.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    pub gradients: GradientTerms,
    pub momentum: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
}

impl Update for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn states(&self) -> &'static [State] {
        if self.momentum == 0.0 { &[] } else { const { &[State::elementwise("momentum")] } }
    }

    fn numbers(&self) -> &'static [&'static str] {
        &["learning_rate"]
    }

    fn gradients(&self) -> &GradientTerms {
        &self.gradients
    }

    fn gradients_mut(&mut self) -> &mut GradientTerms {
        &mut self.gradients
    }

    fn to_op(&self) -> Op {
        Op::Sgd(self.clone())
    }
}
