//! `lora`: low-rank factors trained beside a frozen base model.

use super::StorageDtype;
use crate::reader::declare::{InlineTable, inline_table, key_table, keywords};
use crate::reader::list::List;
use crate::reader::parsers::{Boolean, NonEmptyText, POSITIVE, UsizeRange, keyword};
use ops::{CodeFormat, DType, Storage};

pub(super) const LORA: InlineTable<Lora> =
    inline_table("lora", "`lora`", "rank = 8, alpha = 16, targets = [\"attention.qkv\"]");

/// No layer is wider. The rank is checked against the target layers once the model is built.
const RANK: UsizeRange = UsizeRange(1..=1 << 24);

/// Names of linear layers within a block, and patterns of names.
const TARGETS: List<NonEmptyText> = List {
    of: "parts of blocks",
    example: "[\"attention.qkv\"]",
    may_be_empty: true,
    may_repeat: false,
    element: NonEmptyText,
};

key_table! {
    /// Low-rank adaptation (Hu et al. 2022). The frozen base is the model itself.
    pub struct Lora {
        /// Rank of the factors: the inner dimension of their product (PEFT: `r`).
        pub rank: usize = RANK;
        /// The product of the factors is scaled by `alpha / rank` (PEFT: `lora_alpha`).
        pub alpha: f64 = POSITIVE;
        /// Linear layers of each block that get factors, by name or pattern (PEFT: `target_modules`). A planned run
        /// lists their full names.
        pub targets: Vec<String> = TARGETS;
        /// Storage format of the frozen linear layers of blocks; "params": as `params`.
        pub base: LoraBase = keyword(), default LoraBase::Params;
        /// Whether the scales of nf4 are quantized as well, as QLoRA does (default with `base = "nf4"`; no other base
        /// supports it).
        pub double_quantization: bool = Boolean, default LoraBase::default_double_quantization(base);
    }
}

keywords! {
    /// Storage format of a frozen linear layer's weight.
    pub enum LoraBase {
        /// As `params`.
        Params = "params",
        Fp32 = "fp32",
        Bf16 = "bf16",
        Fp16 = "fp16",
        /// One byte per element, and a scale per row.
        Int8 = "int8",
        /// NormalFloat4: four bits per element, and a scale per 64 elements.
        Nf4 = "nf4",
    }
}

impl LoraBase {
    /// Replaces an explicit dtype that equals `params` by `Params`, so that equal choices have one name.
    pub fn beside(self, params: StorageDtype) -> LoraBase {
        match (self, params) {
            (LoraBase::Fp32, StorageDtype::Fp32)
            | (LoraBase::Bf16, StorageDtype::Bf16)
            | (LoraBase::Fp16, StorageDtype::Fp16) => LoraBase::Params,
            (base, _) => base,
        }
    }

    /// Whether it has fewer bits than numbers have.
    pub fn is_quantized(self) -> bool {
        matches!(self, LoraBase::Int8 | LoraBase::Nf4)
    }

    /// The default of `double_quantization`: true with nf4, as in QLoRA. `None` is a base that could not be read.
    fn default_double_quantization(base: impl Into<Option<LoraBase>>) -> bool {
        base.into() == Some(LoraBase::Nf4)
    }
}

impl Lora {
    /// Storage of the linear layers of blocks, given the storage dtype of the parameters.
    pub fn storage(&self, params: StorageDtype) -> Storage {
        match self.base.beside(params) {
            LoraBase::Params => Storage::Plain,
            LoraBase::Fp32 => Storage::Numbers(DType::F32),
            LoraBase::Bf16 => Storage::Numbers(DType::BF16),
            LoraBase::Fp16 => Storage::Numbers(DType::F16),
            LoraBase::Int8 => Storage::Codes(CodeFormat::Int8),
            LoraBase::Nf4 => Storage::Codes(CodeFormat::Nf4 { double: self.double_quantization }),
        }
    }
}
