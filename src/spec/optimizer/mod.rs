//! What applies gradients: a file for each optimizer. A new one is its file, and its lines here.

mod adamw;

pub use adamw::{AdamW, Decay};

use super::declare::choice;
use crate::ops::{GradientTerms, Update};

choice! {
    pub enum Optimizer("train.optimizer"): Rule {
        adamw: AdamW,
    }
    later "adam", "lion", "sgd"
}

/// What each optimizer says of itself.
trait Rule {
    /// Its update of a bucket.
    fn update(&self, gradients: GradientTerms) -> Box<dyn Update>;

    /// What its update takes as the numbers of step `step`, counted from 1; steps that were skipped do not count.
    fn numbers(&self, step: usize) -> Vec<f32>;

    /// Whether weight decay applies to parameters of this many dimensions.
    fn decays(&self, dimensions: usize) -> bool;
}

impl Optimizer {
    /// Its update of a bucket.
    pub fn update(&self, gradients: GradientTerms) -> Box<dyn Update> {
        self.each().update(gradients)
    }

    /// What its update takes as the numbers of step `step`, counted from 1; steps that were skipped do not count.
    pub fn numbers(&self, step: usize) -> Vec<f32> {
        self.each().numbers(step)
    }

    /// What it keeps of each parameter, by name: of equal names, equal states.
    pub(super) fn states(&self) -> Vec<&'static str> {
        let update = self.update(GradientTerms::default());
        update.states().iter().map(|state| state.name).chain([update.name()]).collect()
    }

    /// Whether weight decay applies to parameters of this many dimensions.
    pub fn decays(&self, dimensions: usize) -> bool {
        self.each().decays(dimensions)
    }
}
