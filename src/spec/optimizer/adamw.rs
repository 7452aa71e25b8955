//! `[train.optimizer.adamw]`

use super::UpdateRule;
use crate::ops::{self, Control, Op, Segments};
use crate::spec::declare::{section, words};
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

words! {
    /// Which parameters weight decay applies to.
    pub enum Decay {
        /// Those with two dimensions: weights and embeddings, not biases and norms.
        Matrices = "matrices",
        All = "all",
    }
}

impl UpdateRule for AdamW {
    fn state(&self) -> &'static str {
        // Taken apart, so that a new key does not go by unseen.
        let AdamW { lr: _, beta1: _, beta2: _, epsilon: _, weight_decay: _, decay: _ } = self;
        "adamw"
    }

    fn decays(&self, dimensions: usize) -> bool {
        match self.decay {
            Decay::Matrices => dimensions > 1,
            Decay::All => true,
        }
    }
    fn operation(&self, segments: Segments, clip_norm: Option<f32>, scaled: bool) -> Op {
        Op::AdamW(ops::AdamW {
            segments,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon as f32,
            weight_decay: self.weight_decay as f32,
            clip_norm,
            scaled,
        })
    }

    fn control(&self, step: usize) -> Control {
        let correction = |beta: f64| (1.0 - beta.powi(i32::try_from(step).unwrap_or(i32::MAX))) as f32;
        Control {
            learning_rate: self.lr as f32,
            bias_correction1: correction(self.beta1),
            bias_correction2: correction(self.beta2),
        }
    }
}
