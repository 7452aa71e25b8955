//! `[train.optimizer.sgd]`

use super::{Decay, UpdateRule};
use crate::ops::{self, GradientTerms, Update, UpdateFormat};
use crate::spec::declare::section;
use crate::spec::error::Problem;
use crate::spec::kinds::{DECAY_RATE, Flag, NOT_NEGATIVE, POSITIVE, word};
use crate::spec::rules::blame;
use crate::spec::tree::Table;

section! {
    /// Stochastic gradient descent, as PyTorch has it: weight decay is added to the gradient.
    pub struct Sgd {
        pub lr: f64 = POSITIVE;
        pub momentum: f64 = DECAY_RATE, default 0.0;
        pub nesterov: bool = Flag, default false;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        pub decay: Decay = word(), default Decay::Matrices;
    }
}

impl UpdateRule for Sgd {
    fn update(&self, gradients: GradientTerms, format: UpdateFormat) -> Box<dyn Update> {
        let (momentum, weight_decay) = (self.momentum as f32, self.weight_decay as f32);
        Box::new(ops::Sgd { gradients, format, momentum, nesterov: self.nesterov, weight_decay })
    }

    fn learning_rate(&self) -> f64 {
        self.lr
    }

    fn numbers(&self, step: usize, learning_rate: f32) -> Vec<f32> {
        vec![learning_rate, step as f32]
    }

    fn decays(&self, dimensions: usize) -> bool {
        self.decay.applies_to(dimensions)
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
