//! Adam with decoupled weight decay.

use super::{GradientTerms, Op, State, Update};

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019). States: first and second moments.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    pub gradients: GradientTerms,
    /// What the moments keep of their old value, in f64: `1 - beta2`, taken in f32, would be off by 1e-5.
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f32,
    pub weight_decay: f32,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWNumbers {
    pub learning_rate: f32,
    /// `1 - beta1^t`
    pub bias_correction1: f32,
    /// `1 - beta2^t`
    pub bias_correction2: f32,
}

impl AdamWNumbers {
    /// In the order of `AdamW::numbers`.
    pub fn to_array(self) -> [f32; 3] {
        [self.learning_rate, self.bias_correction1, self.bias_correction2]
    }

    pub fn from_array([learning_rate, bias_correction1, bias_correction2]: [f32; 3]) -> AdamWNumbers {
        AdamWNumbers { learning_rate, bias_correction1, bias_correction2 }
    }
}

impl Update for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn states(&self) -> &'static [State] {
        const { &[State::elementwise("moment1"), State::elementwise("moment2")] }
    }

    fn numbers(&self) -> &'static [&'static str] {
        &["learning_rate", "bias_correction1", "bias_correction2"]
    }

    fn gradients(&self) -> &GradientTerms {
        &self.gradients
    }

    fn gradients_mut(&mut self) -> &mut GradientTerms {
        &mut self.gradients
    }

    fn to_op(&self) -> Op {
        Op::AdamW(self.clone())
    }
}
