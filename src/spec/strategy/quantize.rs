//! `quantize`: of which tensors the optimizer's states are in 8 bits.

use crate::declare::{Inline, inline, section};
use crate::kinds::{Count, Flag};
use ops::Shape;

pub(super) const QUANTIZE: Inline<Quantize> =
    inline("quantize", "`quantize`", "from = 4096, embeddings = true");

/// Numbers of a tensor. No tensor has as many as the most.
const NUMBERS: Count = Count(0..=1 << 48);

section! {
    /// What is not quantized is in fp32.
    #[derive(Copy, Eq)]
    pub struct Quantize: Default {
        /// Numbers of the smallest tensor: those of fewer take little memory, and norms and biases little error.
        pub from: usize = NUMBERS, default 4096;
        /// Whether tables are whose rows are looked up: most gradients of these are zero in a step, and the others large.
        pub embeddings: bool = Flag, default false;
    }
}

impl Quantize {
    /// Whether a tensor is; its rows may be looked up by their numbers.
    pub fn includes(&self, shape: &Shape, looked_up: bool) -> bool {
        shape.elements() >= self.from && (self.embeddings || !looked_up)
    }
}
