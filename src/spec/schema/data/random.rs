//! `[data.random]`

use super::DataSource;
use crate::reader::declare::{Optional, key_table};
use crate::reader::error::Problem;
use crate::reader::parsers::{LONG, SEED};
use crate::reader::tree::Table;
use data::{DataSet, RandomSet};

key_table! {
    /// Random tensors for `model.sequential`: inputs with mean 0 and variance 1, classes, and other targets from 0 to 1. They
    /// are made when they are loaded, and take no memory before.
    pub struct Random {
        /// Number of samples for training, and of others for evaluation; "off": new ones in each step.
        pub samples: Option<usize> = Optional(LONG), default None;
        /// Seed of the tensors.
        pub seed: u64 = SEED, default 0;
    }
}

impl DataSource for Random {
    fn data_set(&self) -> Box<dyn DataSet> {
        let Random { samples, seed } = *self;
        Box::new(RandomSet { samples: samples.map(|samples| samples as u64), seed })
    }

    fn has_tensors(&self) -> bool {
        true
    }

    /// Always: evaluation has samples of its own.
    fn has_evaluation_data(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}
