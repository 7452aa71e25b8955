//! Stochastic gradient descent.

use super::{DType, GradientTerms, Op, State, StateFormat, Update, UpdateFormat};

/// Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's (Sutskever et al. 2013) as PyTorch computes
/// them. Weight decay is added to the gradient: `g += weight_decay * p`. With momentum, `v = momentum * v + g`, and the
/// parameter takes `v`, or with `nesterov` `g + momentum * v`, times the learning rate. State: `v`, if there is momentum,
/// followed by its scales where it is quantized.
#[derive(Clone, Debug, PartialEq)]
pub struct Sgd {
    pub gradients: GradientTerms,
    pub format: UpdateFormat,
    pub momentum: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
}

impl Update for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn states(&self) -> &'static [State] {
        const fn momentum(dtype: DType) -> State {
            State::elementwise("momentum", dtype)
        }
        match self.format.states {
            _ if self.momentum == 0.0 => &[],
            StateFormat::F32 => const { &[momentum(DType::F32)] },
            StateFormat::Bf16(_) => const { &[momentum(DType::BF16)] },
            StateFormat::Quantized => const { &[momentum(DType::U8), State::scales("momentum.scales")] },
        }
    }

    fn numbers(&self) -> &'static [&'static str] {
        &["learning_rate", "step"]
    }

    fn gradients(&self) -> &GradientTerms {
        &self.gradients
    }

    fn format(&self) -> UpdateFormat {
        self.format
    }

    fn gradients_mut(&mut self) -> &mut GradientTerms {
        &mut self.gradients
    }

    fn to_op(&self) -> Op {
        Op::Sgd(self.clone())
    }
}
