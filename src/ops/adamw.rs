//! Adam with decoupled weight decay.

use super::{DType, GradientTerms, Op, State, StateFormat, Update, UpdateFormat};

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019). States: first and second moments, each followed by its
/// scales where they are quantized.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    pub gradients: GradientTerms,
    pub format: UpdateFormat,
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
    /// `t`, for what is drawn: exact up to 2^24.
    pub step: f32,
}

impl AdamWNumbers {
    /// In the order of `AdamW::numbers`.
    pub fn to_array(self) -> [f32; 4] {
        [self.learning_rate, self.bias_correction1, self.bias_correction2, self.step]
    }

    pub fn from_array([learning_rate, bias_correction1, bias_correction2, step]: [f32; 4]) -> AdamWNumbers {
        AdamWNumbers { learning_rate, bias_correction1, bias_correction2, step }
    }
}

impl Update for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn states(&self) -> &'static [State] {
        const fn moments(dtype: DType) -> [State; 2] {
            [State::elementwise("moment1", dtype), State::elementwise("moment2", dtype)]
        }
        match self.format.states {
            StateFormat::F32 => const { &moments(DType::F32) },
            StateFormat::Bf16(_) => const { &moments(DType::BF16) },
            StateFormat::Quantized => {
                const {
                    let [first, second] = moments(DType::U8);
                    &[first, State::scales("moment1.scales"), second, State::scales("moment2.scales")]
                }
            }
        }
    }

    fn numbers(&self) -> &'static [&'static str] {
        &["learning_rate", "bias_correction1", "bias_correction2", "step"]
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
        Op::AdamW(self.clone())
    }
}
