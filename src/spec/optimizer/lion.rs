//! `[train.optimizer.lion]`

use super::{Decay, Group, Groups, Shared, UpdateRule};
use crate::declare::section;
use crate::kinds::{DECAY_RATE, NOT_NEGATIVE, POSITIVE, word};
use ops::Rule;

section! {
    /// The sign of a momentum, with decoupled weight decay.
    pub struct Lion {
        pub lr: f64 = POSITIVE;
        pub beta1: f64 = DECAY_RATE, default 0.9;
        pub beta2: f64 = DECAY_RATE, default 0.99;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        pub decay: Decay = word(), default Decay::Matrices;
        pub groups: Vec<Group> = Groups, default Vec::new();
    }
}

impl UpdateRule for Lion {
    fn rule(&self, weight_decay: f32) -> Rule {
        let Lion { beta1, beta2, .. } = *self;
        Rule::Lion(ops::Lion { beta1, beta2, weight_decay })
    }

    fn shared(&self) -> Shared<'_> {
        let Lion { lr, weight_decay, decay, ref groups, .. } = *self;
        Shared { lr, weight_decay, decay, groups }
    }
}
