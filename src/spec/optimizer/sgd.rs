//! `[train.optimizer.sgd]`

use super::{Decay, Group, Groups, Shared, UpdateRule};
use crate::declare::section;
use crate::error::Problem;
use crate::kinds::{DECAY_RATE, Flag, NOT_NEGATIVE, POSITIVE, word};
use crate::rules::blame;
use crate::tree::Table;
use ops::Rule;

section! {
    /// Stochastic gradient descent, as PyTorch has it: weight decay is added to the gradient.
    pub struct Sgd {
        pub lr: f64 = POSITIVE;
        pub momentum: f64 = DECAY_RATE, default 0.0;
        pub nesterov: bool = Flag, default false;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        pub decay: Decay = word(), default Decay::Matrices;
        pub groups: Vec<Group> = Groups, default Vec::new();
    }
}

impl UpdateRule for Sgd {
    fn rule(&self, weight_decay: f32) -> Rule {
        let momentum = self.momentum as f32;
        Rule::Sgd(ops::Sgd { momentum, nesterov: self.nesterov, weight_decay })
    }

    fn shared(&self) -> Shared<'_> {
        let Sgd { lr, weight_decay, decay, ref groups, .. } = *self;
        Shared { lr, weight_decay, decay, groups }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        if !self.nesterov || self.momentum as f32 > 0.0 {
            return Ok(());
        }
        Err(blame(
            "nesterov = true looks ahead along a momentum, and there is none".to_owned(),
            &["train.optimizer.sgd.nesterov", "train.optimizer.sgd.momentum"],
            tree,
            "momentum = 0.9 gives it one, or nesterov = false",
        ))
    }
}
