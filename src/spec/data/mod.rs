//! What is learnt from: a file for each kind of data. A new one is its file, and its lines here.

mod synthetic;
mod text;
mod tokens;

pub use synthetic::Synthetic;
pub use text::{Arrangement, Text, Tokenizer, Tokens};
pub use tokens::{TokenFiles, TokenFormat};

use super::declare::choice;
use super::error::Problem;
use super::rules::blame;
use super::tree::Table;
use data::{DataSet, Documents};

choice! {
    pub enum Data("data"): DataSource {
        text: Text,
        tokens: TokenFiles,
        synthetic: Synthetic,
    }
    later "cifar", "csv", "idx"
}

/// What each kind of data says of itself.
trait DataSource {
    /// What reads it.
    fn data_set(&self) -> Box<dyn DataSet>;

    /// Refuses to be evaluated on where nothing is left for that.
    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem>;

    /// How its documents become samples.
    fn documents(&self) -> Documents {
        Documents::Joined
    }

    /// Rules between its own keys.
    fn check(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}

impl Data {
    /// What reads it.
    pub fn data_set(&self) -> Box<dyn DataSet> {
        self.each().data_set()
    }

    /// How its documents become samples.
    pub fn documents(&self) -> Documents {
        self.each().documents()
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.each().check(tree)
    }

    pub(super) fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        self.each().leaves_some_to_evaluate(tree)
    }
}

/// Whether a share from the front leaves something.
fn something_is_left(split: f64, key: &'static str, tree: &Table) -> Result<(), Problem> {
    if split < 1.0 {
        return Ok(());
    }
    let message = format!("{key} = 1 leaves nothing to evaluate on");
    Err(blame(message, &[key, "evaluation"], tree, "0.9 does, or evaluation = \"off\""))
}
