//! How parameters that are not trained are stored.

/// What a frozen parameter is stored as. Where it is used, it is brought to what the work is done in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As parameters that are trained are.
    #[default]
    Plain,
    Bf16,
    Codes(CodeFormat),
}

/// What codes stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeFormat {
    /// A byte for each number: how many steps it is above or below 0, which is code 128. A row's scale is its step, the 127th
    /// part of its largest magnitude.
    Int8,
    /// Half a byte for each number (NormalFloat4, Dettmers et al. 2023): one of [`NF4`], as shares of the largest magnitude of
    /// [`NF4_BLOCK`] numbers, which is these numbers' scale.
    Nf4 {
        /// Whether scales are quantized themselves: their mean is taken off, and what is left of
        /// [`QUANTIZED_BLOCK`](super::QUANTIZED_BLOCK) of them is a code of [`DynamicMap::Signed`](super::DynamicMap) each
        /// and a scale of their own. These scales come behind the mean.
        double: bool,
    },
}
