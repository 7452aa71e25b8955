//! `loader`: who assembles batches, how far ahead, and where they wait.

use std::time::Duration;

use crate::spec::declare::{Inline, inline, section};
use crate::spec::kinds::{Count, Flag, Number};

pub(super) const LOADER: Inline<Loader> = inline("loader", "`loader`", "workers = 2, prefetch = 2");

/// Each is a thread of its own.
const WORKERS: Count = Count(0..=1 << 8);

/// Each is a batch in the host's memory.
const PREFETCH: Count = Count(0..=1 << 10);

/// Longer ones show nothing more.
const DELAY: Number = Number {
    holds: |number| (0.0..=60_000.0).contains(&number),
    expected: "a number of milliseconds from 0 to 60000",
};

section! {
    #[derive(Copy)]
    pub struct Loader: Default {
        /// Threads that assemble batches, each its share of every batch. With none, the step does so itself.
        pub workers: usize = WORKERS, default 0;
        /// Batches that are assembled ahead of the one that is trained on.
        pub prefetch: usize = PREFETCH, default 0;
        /// Whether batches lie in memory that copies reach while others compute.
        pub pinned: bool = Flag, default true;
        /// Milliseconds that each sample of a training step takes longer: what workers are worth where samples are costly.
        pub delay: f64 = DELAY, default 0.0;
    }
}

impl Loader {
    /// Batches that there is room for: the one that is trained on, and those ahead of it.
    pub fn slots(&self) -> usize {
        self.prefetch + 1
    }

    /// What each sample of a training step takes longer.
    pub fn delay(&self) -> Duration {
        Duration::from_secs_f64(self.delay / 1e3)
    }

    /// Whether batches are assembled by the same threads in the same time, wherever they lie.
    pub fn assembles_like(&self, other: &Loader) -> bool {
        (self.workers, self.delay) == (other.workers, other.delay)
    }
}
