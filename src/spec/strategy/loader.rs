//! `loader`: who assembles batches, how far ahead, and where they wait.

use std::time::Duration;

use crate::declare::{Inline, Words, inline, section, words};
use crate::kinds::{Count, Flag, Number, word};
use ops::DType;

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
        /// Where batches are taken from.
        pub source: LoadedFrom = word(), default LoadedFrom::Stream;
        /// What ids are until an operation takes them.
        pub dtype: LoadedAs = word(), default LoadedAs::I32;
        /// Milliseconds that each sample of a training step takes longer: what workers are worth where samples are costly.
        pub delay: f64 = DELAY, default 0.0;
    }
}

words! {
    /// Where the data lies that batches are taken from.
    pub enum LoadedFrom {
        /// Where it is, read as it is needed.
        Stream = "stream",
        /// All of it in the host's memory.
        Ram = "ram",
        /// All of it in the device's memory, where samples are cut out of it.
        Device = "device",
    }
}

words! {
    /// What ids are stored as in the host's memory, and come to the device as.
    pub enum LoadedAs {
        U8 = "u8",
        U16 = "u16",
        I32 = "i32",
    }
}

impl LoadedFrom {
    /// As experiments write it.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl LoadedAs {
    pub fn dtype(self) -> DType {
        match self {
            LoadedAs::U8 => DType::U8,
            LoadedAs::U16 => DType::U16,
            LoadedAs::I32 => DType::I32,
        }
    }

    /// What ids have to be below, where one of them is for what is masked.
    pub fn holds(self, masks: bool) -> usize {
        let all = match self {
            LoadedAs::U8 => 1 << 8,
            LoadedAs::U16 => 1 << 16,
            // Nothing else than -1 is masked, and all are whole numbers of 31 bits.
            LoadedAs::I32 => return 1 << 31,
        };
        all - usize::from(masks)
    }
}

impl Loader {
    /// Batches that there is room for: the one that is trained on, and those ahead of it.
    pub fn slots(&self) -> usize {
        self.prefetch + 1
    }

    /// Whether the device has room for the next batch as well, to be brought there while one is trained on. That of one batch
    /// ahead is assembled all that while.
    pub fn brings_ahead(&self) -> bool {
        self.prefetch > 1
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
