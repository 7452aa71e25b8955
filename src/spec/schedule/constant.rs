//! `[train.schedule.constant]`

use super::{Curve, warmed_up};
use crate::declare::section;
use crate::kinds::LONG_OR_NONE;

section! {
    /// The learning rate itself, after a warm-up.
    pub struct Constant: Default {
        /// Steps that the learning rate rises for.
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
