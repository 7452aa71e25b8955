//! `[data.text]`

use std::path::PathBuf;

use super::{DataSource, something_is_left};
use crate::data::{DataSet, TextSet};
use crate::spec::declare::{section, words};
use crate::spec::error::Problem;
use crate::spec::kinds::{SHARE, word};
use crate::spec::paths::Paths;
use crate::spec::tree::Table;

section! {
    /// Files of text, in the order of their sorted paths.
    pub struct Text {
        /// Absolute paths and globs.
        pub paths: Vec<PathBuf> = Paths;
        pub tokens: Tokens = word(), default Tokens::Bytes;
        /// The share, from the front, that is trained on; the rest is evaluated on.
        pub split: f64 = SHARE, default 0.9;
    }
}

words! {
    pub enum Tokens {
        /// Each byte is a token.
        Bytes = "bytes",
    }
}

impl DataSource for Text {
    fn data_set(&self) -> Box<dyn DataSet> {
        match self.tokens {
            Tokens::Bytes => Box::new(TextSet::new(&self.paths, self.split)),
        }
    }

    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        something_is_left(self.split, "data.text.split", tree)
    }
}
