//! `lora`: low-rank factors trained beside a frozen base model.

use super::StorageDtype;
use crate::reader::declare::{InlineTable, Optional, inline_table, key_table, keywords};
use crate::reader::list::List;
use crate::reader::parsers::{Boolean, LAYERS, NonEmptyText, POSITIVE, UsizeRange, keyword};
use crate::schema::model::RATE;
use ops::{CodeFormat, DType, Storage};

pub(super) const LORA: InlineTable<Lora> =
    inline_table("lora", "`lora`", "rank = 8, alpha = 16, targets = [\"all-linear\"]");

/// No layer is wider. The rank is checked against the target layers once the model is built.
const RANK: UsizeRange = UsizeRange(1..=1 << 24);

/// Names of linear layers within a block, and patterns of names.
const TARGETS: List<NonEmptyText> = List {
    of: "linear layers of blocks",
    example: "[\"attention.q\", \"attention.v\"]",
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
        /// Linear layers of each block that get factors, by name or pattern (PEFT: `target_modules`): names of this
        /// program (`attention.q`) or of the transformers library (`q_proj`), or "all-linear". A planned run lists
        /// their full names.
        pub targets: Vec<String> = TARGETS;
        /// Probability with which elements of the input of the factors are dropped in training (PEFT: `lora_dropout`).
        pub dropout: f64 = RATE, default 0.0;
        /// Whether the product is scaled by `alpha / sqrt(rank)` (rank-stabilized LoRA; PEFT: `use_rslora`).
        pub rslora: bool = Boolean, default false;
        /// Layers trained in full beside the factors, such as the embedding, by name or pattern (PEFT:
        /// `modules_to_save`). A planned run lists the outermost matching layers.
        pub trained: Vec<String> = LAYERS, default Vec::new();
        /// Storage format of the frozen linear layers of blocks; "params": as `params`.
        pub base: LoraBase = keyword(), default LoraBase::Params;
        /// Storage dtype of the frozen embedding tables and of the head's weight; "off": as `params`. A head in fewer bits
        /// than `precision` is cast for its matmul.
        pub tables: Option<StorageDtype> = Optional(keyword()), default None;
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
    /// Factors of this rank, without optional terms.
    pub fn new(rank: usize, alpha: f64, targets: Vec<String>) -> Lora {
        let (dropout, rslora, trained) = (0.0, false, Vec::new());
        let (base, tables, double_quantization) = (LoraBase::Params, None, false);
        Lora { rank, alpha, targets, dropout, rslora, trained, base, tables, double_quantization }
    }

    /// The factor of the product.
    pub fn factor(&self) -> f32 {
        let rank = self.rank as f64;
        (self.alpha / if self.rslora { rank.sqrt() } else { rank }) as f32
    }

    /// Storage of the tables, given the storage dtype of the parameters.
    pub fn table_storage(&self, params: StorageDtype) -> Storage {
        match self.tables {
            Some(dtype) if dtype != params => Storage::Numbers(dtype.dtype()),
            _ => Storage::Plain,
        }
    }

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
