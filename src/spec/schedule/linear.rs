//! `[train.schedule.linear]`

use super::{Curve, progress, warmed_up};
use crate::declare::{Optional, section};
use crate::kinds::{LONG, LONG_OR_NONE, SHARE_OR_NONE};

section! {
    /// A line down to the floor.
    pub struct Linear {
        /// Steps that the learning rate rises for.
        pub warmup: usize = LONG_OR_NONE, default 0;
        /// Steps until the floor is reached, warm-up included; as many as the run has, unless it is said.
        pub total: Option<usize> = Optional(LONG), default None;
        /// What is left of the learning rate in the end.
        pub floor: f64 = SHARE_OR_NONE, default 0.0;
    }
}

impl Curve for Linear {
    fn total(&self) -> Option<usize> {
        self.total
    }

    fn parts(&self) -> Vec<(&'static str, usize)> {
        vec![("warmup", self.warmup)]
    }

    fn share(&self, done: usize, total: usize) -> f64 {
        let left = 1.0 - progress(done, self.warmup, total);
        warmed_up(done, self.warmup) * (self.floor + (1.0 - self.floor) * left)
    }
}
