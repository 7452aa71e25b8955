//! `rotary`: positions as rotations of queries and keys.

use crate::declare::{Inline, Optional, inline, section};
use crate::kinds::{DIMENSION, Number, POSITIVE};
use ops::{Frequencies, Scaling};

pub(super) const ROTARY: Inline<Rotary> = inline("rotary", "`rotary`", "base = 500000.0");

const SCALING: Inline<RotaryScaling> = inline("scaling", "`scaling`", "factor = 8.0, original = 8192");

const FACTOR: Number = Number {
    holds: |number| number >= 1.0 && (number as f32).is_finite(),
    expected: "a number of at least 1 that an f32 can hold",
};

section! {
    /// How fast pairs of channels turn from one position to the next.
    pub struct Rotary: Default {
        /// Pair i of D / 2 turns by `base^(-2i/D)`.
        pub base: f64 = POSITIVE, default 10_000.0;
        /// Slower, for a longer context than was trained.
        pub scaling: Option<RotaryScaling> = Optional(SCALING), default None;
    }
}

section! {
    /// Llama 3's: pairs that turn often in the original context stay as they are, those that hardly do turn slower by the
    /// factor, those between by a part of it.
    pub struct RotaryScaling {
        pub factor: f64 = FACTOR;
        /// Up to so many turns in the original context, it is slower by the whole factor.
        pub low: f64 = POSITIVE, default 1.0;
        /// From so many on, it is not.
        pub high: f64 = POSITIVE, default 4.0;
        /// Positions that were trained.
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
        Frequencies { base: self.base, scaling }
    }
}
