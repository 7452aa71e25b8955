//! `[train.optimizer.sgd]`

use super::{Decay, GROUPS, Group, SharedKeys, UpdateRule};
use crate::reader::declare::key_table;
use crate::reader::error::Problem;
use crate::reader::parsers::{Boolean, DECAY_RATE, NOT_NEGATIVE, POSITIVE, keyword};
use crate::reader::tree::Table;
use crate::schema::rules::attach_span;
use ops::Rule;

key_table! {
    /// Stochastic gradient descent, with weight decay added to the gradient. PyTorch: `torch.optim.SGD`.
    pub struct Sgd {
        /// Learning rate.
        pub lr: f64 = POSITIVE;
        /// Momentum; with 0, the optimizer has no state.
        pub momentum: f64 = DECAY_RATE, default 0.0;
        /// Whether to use Nesterov momentum. Needs `momentum` above 0.
        pub nesterov: bool = Boolean, default false;
        /// Weight decay, added to the gradient.
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        /// Parameters that weight decay applies to.
        pub decay: Decay = keyword(), default Decay::Matrices;
        /// Parameter groups with their own learning rate or weight decay.
        pub groups: Vec<Group> = GROUPS, default Vec::new();
    }
}

impl UpdateRule for Sgd {
    fn rule(&self, weight_decay: f32) -> Rule {
        let momentum = self.momentum as f32;
        Rule::Sgd(ops::Sgd { momentum, nesterov: self.nesterov, weight_decay })
    }

    fn shared(&self) -> SharedKeys<'_> {
        let Sgd { lr, weight_decay, decay, ref groups, .. } = *self;
        SharedKeys { lr, weight_decay, decay, groups }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        if !self.nesterov || self.momentum as f32 > 0.0 {
            return Ok(());
        }
        Err(attach_span(
            "nesterov = true needs a momentum, and momentum is 0".to_owned(),
            &["train.optimizer.sgd.nesterov", "train.optimizer.sgd.momentum"],
            tree,
            "use momentum = 0.9 or nesterov = false",
        ))
    }
}
