//! `[train.optimizer.adamw]`

use super::{Decay, GROUPS, Group, SharedKeys, UpdateRule};
use crate::reader::declare::key_table;
use crate::reader::parsers::{DECAY_RATE, NOT_NEGATIVE, POSITIVE, keyword};
use ops::Rule;

key_table! {
    /// Adam with decoupled weight decay. PyTorch: `torch.optim.AdamW`.
    pub struct AdamW {
        /// Learning rate.
        pub lr: f64 = POSITIVE;
        /// Decay rate of the first moment.
        pub beta1: f64 = DECAY_RATE, default 0.9;
        /// Decay rate of the second moment.
        pub beta2: f64 = DECAY_RATE, default 0.999;
        /// Added to the square root of the second moment (`eps`).
        pub epsilon: f64 = POSITIVE, default 1e-8;
        /// Decoupled weight decay.
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.01;
        /// Parameters that weight decay applies to.
        pub decay: Decay = keyword(), default Decay::Matrices;
        /// Parameter groups with their own learning rate or weight decay.
        pub groups: Vec<Group> = GROUPS, default Vec::new();
    }
}

impl UpdateRule for AdamW {
    fn rule(&self, weight_decay: f32) -> Rule {
        let AdamW { beta1, beta2, .. } = *self;
        let epsilon = self.epsilon as f32;
        Rule::Adam(ops::Adam { beta1, beta2, epsilon, weight_decay, decoupled: true })
    }

    fn shared(&self) -> SharedKeys<'_> {
        let AdamW { lr, weight_decay, decay, ref groups, .. } = *self;
        SharedKeys { lr, weight_decay, decay, groups }
    }
}
