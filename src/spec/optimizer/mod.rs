//! What applies gradients: a file for each optimizer. A new one is its file, and its lines here.

mod adamw;

pub use adamw::{AdamW, Decay};

use super::declare::choice;

choice! {
    pub enum Optimizer("train.optimizer"): Rule {
        adamw: AdamW,
    }
    later "adam", "lion", "sgd"
}

/// What each optimizer says of itself.
trait Rule {
    /// Names what is kept of each parameter: of equal names, equal states.
    fn state(&self) -> &'static str;

    /// Whether weight decay applies to parameters of this many dimensions.
    fn decays(&self, dimensions: usize) -> bool;
}

impl Optimizer {
    pub(super) fn state(&self) -> &'static str {
        self.each().state()
    }

    /// Whether weight decay applies to parameters of this many dimensions.
    pub fn decays(&self, dimensions: usize) -> bool {
        self.each().decays(dimensions)
    }
}
