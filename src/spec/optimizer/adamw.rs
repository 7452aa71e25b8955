//! `[train.optimizer.adamw]`

use super::Rule;
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

impl Rule for AdamW {
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
}
