//! `lora`: low-rank factors that are trained beside a base that is not.

use super::StoredIn;
use crate::declare::{Inline, inline, section, words};
use crate::kinds::{Count, Flag, POSITIVE, Texts, word};
use ops::{CodeFormat, DType, Storage};

pub(super) const LORA: Inline<Lora> =
    inline("lora", "`lora`", "rank = 8, alpha = 16, targets = [\"attention.qkv\"]");

/// No layer is wider. How wide those are that it is for is known once the model is.
const RANK: Count = Count(1..=1 << 24);

/// Names of linear layers in a block, and patterns of names.
const TARGETS: Texts = Texts { of: "parts of blocks", example: "attention.qkv" };

section! {
    /// Low-rank adaptation (Hu et al. 2022). The model itself is the base.
    pub struct Lora {
        /// Numbers between a layer's two factors.
        pub rank: usize = RANK;
        /// Over the rank, what the factors' product counts.
        pub alpha: f64 = POSITIVE;
        /// Linear layers of each block that get factors. Of a run that is planned, each by its name.
        pub targets: Vec<String> = TARGETS;
        /// What the linear layers of blocks are stored as.
        pub base: Base = word(), default Base::Params;
        /// Whether the scales of nf4 are quantized themselves.
        pub double_quantization: bool = Flag, default Base::is_quantized_twice(base);
    }
}

words! {
    /// What a frozen linear layer's weight is stored as.
    pub enum Base {
        /// As all parameters are.
        Params = "params",
        Fp32 = "fp32",
        Bf16 = "bf16",
        Fp16 = "fp16",
        /// A byte for each number, and a scale for each row.
        Int8 = "int8",
        /// NormalFloat4: half a byte for each number, and a scale for each 64.
        Nf4 = "nf4",
    }
}

impl Base {
    /// The one name for what is stored as parameters are.
    pub fn beside(self, params: StoredIn) -> Base {
        match (self, params) {
            (Base::Fp32, StoredIn::Fp32) | (Base::Bf16, StoredIn::Bf16) | (Base::Fp16, StoredIn::Fp16) => {
                Base::Params
            }
            (base, _) => base,
        }
    }

    /// Whether scales are quantized where nothing is said of it, as QLoRA does; of a base that could not be read, no matter.
    fn is_quantized_twice(base: impl Into<Option<Base>>) -> bool {
        base.into() == Some(Base::Nf4)
    }
}

impl Lora {
    /// How the linear layers of blocks are stored, where parameters are stored so.
    pub fn storage(&self, params: StoredIn) -> Storage {
        match self.base.beside(params) {
            Base::Params => Storage::Plain,
            Base::Fp32 => Storage::Numbers(DType::F32),
            Base::Bf16 => Storage::Numbers(DType::BF16),
            Base::Fp16 => Storage::Numbers(DType::F16),
            Base::Int8 => Storage::Codes(CodeFormat::Int8),
            Base::Nf4 => Storage::Codes(CodeFormat::Nf4 { double: self.double_quantization }),
        }
    }
}
