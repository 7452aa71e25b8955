//! `rotary`: rotary position embeddings (RoPE) of queries and keys.

use std::ops::Bound::{Excluded, Included};

use crate::reader::declare::{InlineTable, Optional, inline_table, key_table};
use crate::reader::list::List;
use crate::reader::parsers::{DIMENSION, FloatRange, POSITIVE, ROUNDS_TO_INFINITY, UsizeRange};
use ops::{Frequencies, Scaling};

pub(super) const ROTARY: InlineTable<Rotary> = inline_table("rotary", "`rotary`", "base = 500000.0");

const SCALING: InlineTable<RotaryScaling> =
    inline_table("scaling", "`scaling`", "factor = 8.0, original = 8192");

const FACTOR: FloatRange = FloatRange {
    bounds: (Included(1.0), Excluded(ROUNDS_TO_INFINITY)),
    expected: "a number of at least 1 that an f32 can hold",
};

/// With 1, no block would rotate: those are other positions.
const SKIPPED: UsizeRange = UsizeRange(2..=1 << 14);

/// As many as a head has channel pairs.
const DIVISORS: List<FloatRange> = List {
    of: "numbers",
    example: "[1.0, 1.0, 4.0, 4.0]",
    may_be_empty: true,
    may_repeat: true,
    element: POSITIVE,
};

key_table! {
    /// The angle by which each pair of channels is rotated from one position to the next.
    pub struct Rotary: Default {
        /// Base of the frequencies (`rope_theta`): pair i of D / 2 is rotated by `base^(-2i/D)` per position, with D the rotated
        /// channels of a head.
        pub base: f64 = POSITIVE, default 10_000.0;
        /// Number of rotated channels per head, from the first on: an even number (GPT-NeoX, Phi). By default all.
        pub channels: Option<usize> = Optional(DIMENSION), default None;
        /// Lower frequencies, for a longer context than the model was trained on (`rope_scaling`).
        pub scaling: Option<RotaryScaling> = Optional(SCALING), default None;
        /// Divisor of each pair's frequency, from the highest frequency to the lowest: linear, YaRN and LongRoPE scaling.
        pub divisors: Vec<f64> = DIVISORS, default Vec::new();
        /// Base of blocks with a window, without scaling and divisors (Gemma 3's `rope_local_base_freq`). Needs `window`.
        pub window_base: Option<f64> = Optional(POSITIVE), default None;
        /// Every n-th block does not rotate (SmolLM3).
        pub skip_every: Option<usize> = Optional(SKIPPED), default None;
    }
}

key_table! {
    /// Llama 3's scaling: high frequencies stay unchanged, low frequencies are divided by `factor`, and frequencies
    /// between are interpolated.
    pub struct RotaryScaling {
        /// Divisor of low frequencies.
        pub factor: f64 = FACTOR;
        /// Pairs with at most this many turns in the original context are divided by `factor` (`low_freq_factor`).
        pub low: f64 = POSITIVE, default 1.0;
        /// Pairs with at least this many turns in the original context stay unchanged (`high_freq_factor`).
        pub high: f64 = POSITIVE, default 4.0;
        /// Context that the model was trained on, in positions (`original_max_position_embeddings`).
        pub original: usize = DIMENSION;
    }
}

impl Rotary {
    pub fn frequencies(&self) -> Frequencies {
        let scaling = self.scaling.as_ref().map(|&RotaryScaling { factor, low, high, original }| Scaling {
            factor,
            low,
            high,
            original,
        });
        Frequencies { base: self.base, scaling, divisors: self.divisors.clone() }
    }
}
