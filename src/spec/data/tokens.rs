//! `[data.tokens]`

use std::path::PathBuf;

use super::{DataSource, something_is_left};
use crate::declare::{section, words};
use crate::error::Problem;
use crate::kinds::{Count, SHARE, word};
use crate::paths::Paths;
use crate::tree::Table;
use data::{DataSet, TokenSet, TokenWidth};

/// Bytes; more than any format has.
const HEADER: Count = Count(0..=1 << 20);

section! {
    /// Flat files of tokens, in the order of their sorted paths.
    pub struct TokenFiles {
        /// Absolute paths and globs.
        pub paths: Vec<PathBuf> = Paths;
        pub format: TokenFormat = word(), default TokenFormat::U16;
        /// Bytes at the front of each file that are no tokens.
        pub header: usize = HEADER, default 0;
        /// The share, from the front, that is trained on; the rest is evaluated on.
        pub split: f64 = SHARE, default 0.9;
    }
}

words! {
    /// What a token is stored as, its least byte first.
    pub enum TokenFormat {
        U16 = "u16",
        U32 = "u32",
    }
}

impl DataSource for TokenFiles {
    fn data_set(&self) -> Box<dyn DataSet> {
        let width = match self.format {
            TokenFormat::U16 => TokenWidth::U16,
            TokenFormat::U32 => TokenWidth::U32,
        };
        Box::new(TokenSet { paths: self.paths.clone(), width, header: self.header, split: self.split })
    }

    fn leaves_some_to_evaluate(&self, tree: &Table) -> Result<(), Problem> {
        something_is_left(self.split, "data.tokens.split", tree)
    }
}
