//! `[train.schedule.warmup_stable_decay]`

use super::{Curve, progress, warmed_up};
use crate::reader::declare::{Optional, key_table};
use crate::reader::parsers::{LONG, LONG_OR_NONE, SHARE_OR_NONE};

key_table! {
    /// A constant learning rate with linear warm-up and a linear decay at the end (Hu et al. 2024). Training can be
    /// continued from before the decay, whatever length was planned.
    pub struct WarmupStableDecay {
        /// Steps of linear warm-up.
        pub warmup: usize = LONG_OR_NONE, default 0;
        /// Steps of linear decay, at the end.
        pub decay: usize = LONG;
        /// Steps until `floor` is reached, warm-up and decay included; by default the steps of the run.
        pub total: Option<usize> = Optional(LONG), default None;
        /// Final learning rate, as a share of `lr`.
        pub floor: f64 = SHARE_OR_NONE, default 0.0;
    }
}

impl Curve for WarmupStableDecay {
    fn total(&self) -> Option<usize> {
        self.total
    }

    fn parts(&self) -> Vec<(&'static str, usize)> {
        vec![("warmup", self.warmup), ("decay", self.decay)]
    }

    fn share(&self, done: usize, total: usize) -> f64 {
        let left = 1.0 - progress(done, total.saturating_sub(self.decay), total);
        warmed_up(done, self.warmup) * (self.floor + (1.0 - self.floor) * left)
    }
}
