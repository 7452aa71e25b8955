//! `[data.tokens]`

use std::path::PathBuf;

use super::{DataSource, check_split, default_split, one_source_of_evaluation};
use crate::reader::declare::{key_table, keywords};
use crate::reader::error::Problem;
use crate::reader::parsers::{SHARE, UsizeRange, keyword};
use crate::reader::paths::{EVALUATION_PATHS, PATHS};
use crate::reader::tree::Table;
use data::{DataSet, TokenSet, TokenWidth};

/// In bytes; more than any format has.
const HEADER: UsizeRange = UsizeRange(0..=1 << 20);

key_table! {
    /// Flat binary files of token ids, concatenated in the order of their sorted paths.
    pub struct TokenFiles {
        /// Paths and globs, relative to the experiment file; `${VARIABLE}` is expanded.
        pub paths: Vec<PathBuf> = PATHS;
        /// Storage format of a token id, little-endian.
        pub format: TokenFormat = keyword(), default TokenFormat::U16;
        /// Size of the header of each file in bytes; it is skipped.
        pub header: usize = HEADER, default 0;
        /// Paths and globs of files for evaluation only; `paths` are then for training as a whole. Instead of `split`.
        pub evaluate: Vec<PathBuf> = EVALUATION_PATHS, default Vec::new();
        /// Share of the tokens, from the front, for training; the rest is for evaluation. 0.9 without `evaluate`.
        pub split: f64 = SHARE, default default_split(&evaluate);
    }
}

keywords! {
    /// Storage format of a token id, little-endian.
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
        let TokenFiles { paths, format: _, header, evaluate, split } = self.clone();
        Box::new(TokenSet { paths, width, header, evaluate, split })
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        if self.evaluate.is_empty() { check_split(self.split, "data.tokens.split", tree) } else { Ok(()) }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        let keys = ["data.tokens.evaluate", "data.tokens.split"];
        one_source_of_evaluation(&self.evaluate, self.split, keys, tree)
    }
}
