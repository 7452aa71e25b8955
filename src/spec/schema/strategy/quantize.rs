//! `quantize`: the tensors whose optimizer states are stored in 8 bits.

use crate::reader::declare::{InlineTable, inline_table, key_table};
use crate::reader::parsers::{Boolean, UsizeRange};
use ops::Shape;

pub(super) const QUANTIZE: InlineTable<Quantize> =
    inline_table("quantize", "`quantize`", "from = 4096, embeddings = true");

/// Elements of a tensor. The upper bound exceeds every tensor.
const NUMBERS: UsizeRange = UsizeRange(0..=1 << 48);

key_table! {
    /// Tensors whose optimizer states are quantized to 8 bits; the others stay in fp32.
    #[derive(Copy, Eq)]
    pub struct Quantize: Default {
        /// Elements of the smallest quantized tensor; smaller tensors take little memory, and norms and biases tolerate
        /// little error. bitsandbytes: `min_8bit_size`.
        pub from: usize = NUMBERS, default 4096;
        /// Whether embedding tables are quantized as well. In each step most of their gradients are zero and the others
        /// large.
        pub embeddings: bool = Boolean, default false;
    }
}

impl Quantize {
    /// Whether a tensor is quantized; `looked_up`: it is an embedding table.
    pub(crate) fn includes(&self, shape: &Shape, looked_up: bool) -> bool {
        shape.elements() >= self.from && (self.embeddings || !looked_up)
    }
}
