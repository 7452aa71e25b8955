//! What learns: a file for each model. A new one is its file, and its lines here.

mod hf;
mod transformer;

use std::path::Path;

pub use hf::Hf;
pub(crate) use hf::decides;
pub use transformer::{
    Dropout, MlpActivation, Norm, NormPlacement, Positions, Rotary, RotaryScaling, Transformer,
};

use super::declare::choice;
use super::error::Problem;
use super::tree::Table;
use data::{Given, Sample};

choice! {
    pub enum Model("model"): Architecture {
        transformer: Transformer,
    }
    or hf: Hf as Transformer
    later "mlp", "sequential"
}

/// What each model says of itself.
trait Architecture {
    /// In a line: what it is and its sizes.
    fn description(&self) -> String;

    /// What it asks for of each sample.
    fn sample(&self) -> Sample;

    /// Whether it leaves anything to chance while it learns.
    fn draws(&self) -> bool;

    /// What it is where nothing is learnt: nothing is left to chance.
    fn evaluated(&self) -> Model;

    /// How many blocks it has, and the key that says so.
    fn blocks(&self) -> Given;

    /// The file that its parameters start from, if they do.
    fn weights(&self) -> Option<&Path>;

    /// Rules between its own keys.
    fn check(&self, tree: &Table) -> Result<(), Problem>;

    /// Bytes and operations of a step are counted in 64 bits. The sums are upper bounds, with room for every strategy.
    fn sizes_can_be_counted(&self, batch_size: usize, tree: &Table) -> Result<(), Problem>;
}

impl Model {
    /// In a line: what it is and its sizes.
    pub fn description(&self) -> String {
        self.each().description()
    }

    /// What it asks for of each sample.
    pub fn sample(&self) -> Sample {
        self.each().sample()
    }

    /// Whether it leaves anything to chance while it learns.
    pub fn draws(&self) -> bool {
        self.each().draws()
    }

    /// What it is where nothing is learnt: nothing is left to chance.
    pub fn evaluated(&self) -> Model {
        self.each().evaluated()
    }

    /// How many blocks it has, and the key that says so.
    pub fn blocks(&self) -> Given {
        self.each().blocks()
    }

    /// The file that its parameters start from, if they do.
    pub fn weights(&self) -> Option<&Path> {
        self.each().weights()
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.each().check(tree)
    }

    pub(super) fn sizes_can_be_counted(&self, batch_size: usize, tree: &Table) -> Result<(), Problem> {
        self.each().sizes_can_be_counted(batch_size, tree)
    }
}
