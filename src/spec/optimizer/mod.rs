//! What applies gradients: a file for each optimizer. A new one is its file, and its lines here.

mod adamw;
mod sgd;

pub use adamw::AdamW;
pub use sgd::Sgd;

use super::declare::{choice, words};
use super::error::Problem;
use super::tree::Table;
use crate::ops::{GradientTerms, Update, UpdateFormat};

choice! {
    pub enum Optimizer("train.optimizer"): UpdateRule {
        adamw: AdamW,
        sgd: Sgd,
    }
    later "adam", "lion"
}

/// What each optimizer says of itself.
trait UpdateRule {
    /// Its update of a bucket that is stored like this.
    fn update(&self, gradients: GradientTerms, format: UpdateFormat) -> Box<dyn Update>;

    /// The learning rate that a schedule takes shares of.
    fn learning_rate(&self) -> f64;

    /// What its update takes as the numbers of step `step`, counted from 1, at that learning rate.
    fn numbers(&self, step: usize, learning_rate: f32) -> Vec<f32>;

    /// Whether weight decay applies to parameters of this many dimensions.
    fn decays(&self, dimensions: usize) -> bool;

    /// Rules between its own keys.
    fn check(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}

impl Optimizer {
    /// Its update of a bucket that is stored like this.
    pub fn update(&self, gradients: GradientTerms, format: UpdateFormat) -> Box<dyn Update> {
        self.each().update(gradients, format)
    }

    /// The learning rate that a schedule takes shares of.
    pub(super) fn learning_rate(&self) -> f64 {
        self.each().learning_rate()
    }

    /// What its update takes as the numbers of step `step`, counted from 1, at that learning rate.
    pub(super) fn numbers(&self, step: usize, learning_rate: f32) -> Vec<f32> {
        self.each().numbers(step, learning_rate)
    }

    /// What it keeps of each parameter, by name: of equal names, equal states, if they are stored alike.
    pub(super) fn states(&self) -> Vec<&'static str> {
        let update = self.update(GradientTerms::default(), UpdateFormat::default());
        update.states().iter().map(|state| state.name).chain([update.name()]).collect()
    }

    /// Whether weight decay applies to parameters of this many dimensions.
    pub fn decays(&self, dimensions: usize) -> bool {
        self.each().decays(dimensions)
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.each().check(tree)
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

impl Decay {
    fn applies_to(self, dimensions: usize) -> bool {
        match self {
            Decay::Matrices => dimensions > 1,
            Decay::All => true,
        }
    }
}
