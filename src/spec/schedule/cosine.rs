//! `[train.schedule.cosine]`

use std::f64::consts::PI;

use super::{Curve, progress, warmed_up};
use crate::declare::{Optional, section};
use crate::kinds::{LONG, LONG_OR_NONE, SHARE_OR_NONE};

section! {
    /// Half a cosine down to the floor (Loshchilov and Hutter 2017, without restarts).
    pub struct Cosine {
        /// Steps that the learning rate rises for.
        pub warmup: usize = LONG_OR_NONE, default 0;
        /// Steps until the floor is reached, warm-up included; as many as the run has, unless it is said.
        pub total: Option<usize> = Optional(LONG), default None;
        /// What is left of the learning rate in the end.
        pub floor: f64 = SHARE_OR_NONE, default 0.0;
    }
}

impl Curve for Cosine {
    fn total(&self) -> Option<usize> {
        self.total
    }

    fn parts(&self) -> Vec<(&'static str, usize)> {
        vec![("warmup", self.warmup)]
    }

    fn share(&self, done: usize, total: usize) -> f64 {
        let left = 0.5 + 0.5 * (PI * progress(done, self.warmup, total)).cos();
        warmed_up(done, self.warmup) * (self.floor + (1.0 - self.floor) * left)
    }
}
