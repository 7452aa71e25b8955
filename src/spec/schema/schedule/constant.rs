//! `[train.schedule.constant]`

use super::{Curve, warmed_up};
use crate::reader::declare::key_table;
use crate::reader::parsers::LONG_OR_NONE;

key_table! {
    /// A constant learning rate, after a linear warm-up.
    pub struct Constant: Default {
        /// Steps of linear warm-up.
        pub warmup: usize = LONG_OR_NONE, default 0;
    }
}

impl Curve for Constant {
    fn total(&self) -> Option<usize> {
        None
    }

    fn parts(&self) -> Vec<(&'static str, usize)> {
        Vec::new()
    }

    fn share(&self, done: usize, _: usize) -> f64 {
        warmed_up(done, self.warmup)
    }
}
