//! `loader`: the threads that assemble batches, how far ahead, and in which memory.

use std::ops::Bound::Included;
use std::time::Duration;

use crate::reader::declare::{InlineTable, KeywordEnum, inline_table, key_table, keywords};
use crate::reader::parsers::{Boolean, FloatRange, UsizeRange, keyword};
use ops::DType;

pub(super) const LOADER: InlineTable<Loader> =
    inline_table("loader", "`loader`", "workers = 2, prefetch = 2");

/// Each worker is a thread.
const WORKERS: UsizeRange = UsizeRange(0..=1 << 8);

/// Each prefetched batch takes host memory.
const PREFETCH: UsizeRange = UsizeRange(0..=1 << 10);

/// Longer delays would show nothing more.
const DELAY: FloatRange = FloatRange {
    bounds: (Included(0.0), Included(60_000.0)),
    expected: "a number of milliseconds from 0 to 60000",
};

key_table! {
    /// How batches are assembled and transferred to the device.
    #[derive(Copy)]
    pub struct Loader: Default {
        /// Threads that assemble batches, each a share of every batch; with 0, the step assembles them itself. PyTorch:
        /// `num_workers` (processes).
        pub workers: usize = WORKERS, default 0;
        /// Batches assembled ahead of the current one, in total (PyTorch: `prefetch_factor`, per worker). Needs at
        /// least one worker.
        pub prefetch: usize = PREFETCH, default 0;
        /// Whether batches are assembled in pinned memory, from which copies overlap with compute (PyTorch:
        /// `pin_memory`).
        pub pinned: bool = Boolean, default true;
        /// Where the data set is kept: in its files, in host memory or in device memory. "ram" and "device" need data
        /// that is one row of tokens, or a number of samples; "device" images without `crop` and `flip`.
        pub source: DataResidence = keyword(), default DataResidence::Stream;
        /// Dtype of token ids in host memory and during the transfer; the device casts them to i32.
        pub dtype: IdDtype = keyword(), default IdDtype::I32;
        /// Extra milliseconds per training sample, to measure what workers gain when samples are costly to prepare.
        pub delay: f64 = DELAY, default 0.0;
    }
}

keywords! {
    /// Where the data set is kept.
    pub enum DataResidence {
        /// In its files, read as needed.
        Stream = "stream",
        /// All of it in host memory.
        Ram = "ram",
        /// All of it in device memory, where samples are sliced from it.
        Device = "device",
    }
}

keywords! {
    /// Dtype of token ids in host memory and during the transfer to the device.
    pub enum IdDtype {
        U8 = "u8",
        U16 = "u16",
        I32 = "i32",
    }
}

keywords! {
    /// Dtype of inputs that are numbers, in host memory and during the transfer to the device.
    pub enum InputDtype {
        /// Pixels as they are stored.
        U8 = "u8",
        Bf16 = "bf16",
        Fp16 = "fp16",
        Fp32 = "fp32",
    }
}

impl InputDtype {
    pub fn dtype(self) -> DType {
        match self {
            InputDtype::U8 => DType::U8,
            InputDtype::Bf16 => DType::BF16,
            InputDtype::Fp16 => DType::F16,
            InputDtype::Fp32 => DType::F32,
        }
    }
}

impl DataResidence {
    /// As experiments write it.
    pub fn name(self) -> &'static str {
        self.keyword()
    }
}

impl IdDtype {
    pub fn dtype(self) -> DType {
        match self {
            IdDtype::U8 => DType::U8,
            IdDtype::U16 => DType::U16,
            IdDtype::I32 => DType::I32,
        }
    }

    /// The exclusive upper bound of ids; `masks` reserves one id for masked positions.
    pub(crate) fn holds(self, masks: bool) -> usize {
        let all = match self {
            IdDtype::U8 => 1 << 8,
            IdDtype::U16 => 1 << 16,
            // The mask is -1, and ids are non-negative numbers of 31 bits.
            IdDtype::I32 => return 1 << 31,
        };
        all - usize::from(masks)
    }
}

impl Loader {
    /// Batch slots: one for the current batch, and one for each prefetched batch.
    pub fn slots(&self) -> usize {
        self.prefetch + 1
    }

    /// Whether the device has a second batch slot, filled while the current batch is trained on. With one batch ahead,
    /// that batch is still being assembled during this time.
    pub fn brings_ahead(&self) -> bool {
        self.prefetch > 1
    }

    /// Extra time per training sample.
    pub fn delay(&self) -> Duration {
        Duration::from_secs_f64(self.delay / 1e3)
    }

    /// Whether both assemble batches with equal threads and delays, whatever the memory.
    pub fn assembles_like(&self, other: &Loader) -> bool {
        (self.workers, self.delay) == (other.workers, other.delay)
    }
}
