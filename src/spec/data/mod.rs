//! What is learnt from: a file for each kind of data. A new one is its file, and its lines here.

mod text;

pub use text::{Text, Tokens};

use super::declare::choice;
use super::error::Problem;
use super::tree::Table;
use crate::data::DataSet;

choice! {
    pub enum Data("data"): DataSource {
        text: Text,
    }
    later "cifar", "csv", "idx", "synthetic", "tokens"
}

/// What each kind of data says of itself.
trait DataSource {
    /// What reads it.
    fn data_set(&self) -> Box<dyn DataSet>;

    /// Refuses to be evaluated on where nothing is left for that.
    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem>;
}

impl Data {
    /// What reads it.
    pub fn data_set(&self) -> Box<dyn DataSet> {
        self.each().data_set()
    }

    pub(super) fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        self.each().leaves_some_to_evaluate(tree)
    }
}
