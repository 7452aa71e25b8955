//! `[data.synthetic]`

use super::DataSource;
use crate::declare::section;
use crate::error::Problem;
use crate::kinds::{Count, SEED};
use crate::rules::blame;
use crate::tree::Table;
use data::{DataSet, SyntheticSet};

/// With the bounds of successors, a chain takes no more than 64 MiB.
const TOKENS: Count = Count(1..=1 << 18);
const SUCCESSORS: Count = Count(1..=1 << 6);

section! {
    /// Tokens that a Markov chain makes.
    pub struct Synthetic {
        pub tokens: usize = TOKENS, default 256;
        /// How many tokens may follow one.
        pub successors: usize = SUCCESSORS, default 4;
        /// Of the chain; which samples of it are seen is decided by that of training.
        pub seed: u64 = SEED, default 0;
    }
}

impl DataSource for Synthetic {
    fn data_set(&self) -> Box<dyn DataSet> {
        let Synthetic { tokens, successors, seed } = *self;
        Box::new(SyntheticSet { tokens, successors, seed })
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        let Synthetic { tokens, successors, .. } = *self;
        if successors <= tokens {
            return Ok(());
        }
        let message = format!(
            "of {tokens} tokens, no more than {tokens} can follow one, and successors = {successors}"
        );
        let keys = ["data.synthetic.successors", "data.synthetic.tokens"];
        Err(blame(message, &keys, tree, "up to as many successors as tokens do"))
    }

    /// There is no end of it.
    fn leaves_some_to_evaluate(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}
