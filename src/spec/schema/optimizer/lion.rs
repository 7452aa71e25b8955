//! `[train.optimizer.lion]`

use super::{Decay, GROUPS, Group, SharedKeys, UpdateRule};
use crate::reader::declare::key_table;
use crate::reader::parsers::{DECAY_RATE, NOT_NEGATIVE, POSITIVE, keyword};
use ops::Rule;

key_table! {
    /// Lion: steps by the sign of a momentum, with decoupled weight decay.
    pub struct Lion {
        /// Learning rate.
        pub lr: f64 = POSITIVE;
        /// Weight of the momentum in the direction of the step.
        pub beta1: f64 = DECAY_RATE, default 0.9;
        /// Decay rate of the momentum.
        pub beta2: f64 = DECAY_RATE, default 0.99;
        /// Decoupled weight decay.
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        /// Parameters that weight decay applies to.
        pub decay: Decay = keyword(), default Decay::Matrices;
        /// Parameter groups with their own learning rate or weight decay.
        pub groups: Vec<Group> = GROUPS, default Vec::new();
    }
}

impl UpdateRule for Lion {
    fn rule(&self, weight_decay: f32) -> Rule {
        let Lion { beta1, beta2, .. } = *self;
        Rule::Lion(ops::Lion { beta1, beta2, weight_decay })
    }

    fn shared(&self) -> SharedKeys<'_> {
        let Lion { lr, weight_decay, decay, ref groups, .. } = *self;
        SharedKeys { lr, weight_decay, decay, groups }
    }
}
