//! `[train.schedule.linear]`

use super::{Curve, progress, warmed_up};
use crate::reader::declare::{Optional, key_table};
use crate::reader::parsers::{LONG, LONG_OR_NONE, SHARE_OR_NONE};

key_table! {
    /// Linear decay to `floor`.
    pub struct Linear {
        /// Steps of linear warm-up.
        pub warmup: usize = LONG_OR_NONE, default 0;
        /// Steps until `floor` is reached, warm-up included; by default the steps of the run.
        pub total: Option<usize> = Optional(LONG), default None;
        /// Final learning rate, as a share of `lr`.
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
