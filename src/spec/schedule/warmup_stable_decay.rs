//! `[train.schedule.warmup_stable_decay]`

use super::{Curve, progress, warmed_up};
use crate::declare::{Optional, section};
use crate::kinds::{LONG, LONG_OR_NONE, SHARE_OR_NONE};

section! {
    /// The learning rate itself, and in the end a line down to the floor (Hu et al. 2024): a run may go on from before its
    /// decay, whatever its length was meant to be.
    pub struct WarmupStableDecay {
        /// Steps that the learning rate rises for.
        pub warmup: usize = LONG_OR_NONE, default 0;
        /// Steps that it falls for, the last ones.
        pub decay: usize = LONG;
        /// Steps until the floor is reached; as many as the run has, unless it is said.
        pub total: Option<usize> = Optional(LONG), default None;
        /// What is left of the learning rate in the end.
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
