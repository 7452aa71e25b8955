//! `[train.optimizer.adamw]`

use super::{Decay, Group, Groups, Shared, UpdateRule};
use crate::declare::section;
use crate::kinds::{DECAY_RATE, NOT_NEGATIVE, POSITIVE, word};
use ops::Rule;

section! {
    /// Adam with decoupled weight decay.
    pub struct AdamW {
        pub lr: f64 = POSITIVE;
        pub beta1: f64 = DECAY_RATE, default 0.9;
        pub beta2: f64 = DECAY_RATE, default 0.999;
        pub epsilon: f64 = POSITIVE, default 1e-8;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.01;
        pub decay: Decay = word(), default Decay::Matrices;
        pub groups: Vec<Group> = Groups, default Vec::new();
    }
}

impl UpdateRule for AdamW {
    fn rule(&self, weight_decay: f32) -> Rule {
        let AdamW { beta1, beta2, .. } = *self;
        let epsilon = self.epsilon as f32;
        Rule::Adam(ops::Adam { beta1, beta2, epsilon, weight_decay, decoupled: true })
    }

    fn shared(&self) -> Shared<'_> {
        let AdamW { lr, weight_decay, decay, ref groups, .. } = *self;
        Shared { lr, weight_decay, decay, groups }
    }
}
