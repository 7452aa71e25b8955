//! `[train.optimizer.adamw]`

use super::{Decay, UpdateRule};
use crate::ops::{self, AdamWNumbers, GradientTerms, Update, UpdateFormat};
use crate::spec::declare::section;
use crate::spec::kinds::{DECAY_RATE, NOT_NEGATIVE, POSITIVE, word};

section! {
    /// Adam with decoupled weight decay.
    pub struct AdamW {
        pub lr: f64 = POSITIVE;
        pub beta1: f64 = DECAY_RATE, default 0.9;
        pub beta2: f64 = DECAY_RATE, default 0.999;
        pub epsilon: f64 = POSITIVE, default 1e-8;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.01;
        pub decay: Decay = word(), default Decay::Matrices;
    }
}

impl UpdateRule for AdamW {
    fn update(&self, gradients: GradientTerms, format: UpdateFormat) -> Box<dyn Update> {
        let AdamW { beta1, beta2, .. } = *self;
        let (epsilon, weight_decay) = (self.epsilon as f32, self.weight_decay as f32);
        Box::new(ops::AdamW { gradients, format, beta1, beta2, epsilon, weight_decay })
    }

    fn learning_rate(&self) -> f64 {
        self.lr
    }

    fn numbers(&self, step: usize, learning_rate: f32) -> Vec<f32> {
        let correction = |beta: f64| (1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX))) as f32;
        let numbers = AdamWNumbers {
            learning_rate,
            bias_correction1: correction(self.beta1),
            bias_correction2: correction(self.beta2),
            step: step as f32,
        };
        numbers.to_array().to_vec()
    }

    fn decays(&self, dimensions: usize) -> bool {
        self.decay.applies_to(dimensions)
    }
}
