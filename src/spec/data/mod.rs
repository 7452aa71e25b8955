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
    fn vocabulary(&self) -> Vocabulary;

    /// What reads it.
    fn data_set(&self) -> Box<dyn DataSet>;

    /// Refuses to be evaluated on where nothing is left for that.
    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem>;
}

/// The tokens of a kind of data.
pub(super) struct Vocabulary {
    pub(super) tokens: usize,
    /// The data's name, and the key that decides what its tokens are.
    pub(super) of: &'static str,
    pub(super) key: &'static str,
}

impl Data {
    /// What reads it.
    pub fn data_set(&self) -> Box<dyn DataSet> {
        self.each().data_set()
    }

    pub(super) fn vocabulary(&self) -> Vocabulary {
        self.each().vocabulary()
    }

    pub(super) fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        self.each().leaves_some_to_evaluate(tree)
    }
}
