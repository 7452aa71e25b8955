//! `precision`

use crate::reader::declare::{KeywordEnum, keywords};
use ops::DType;

keywords! {
    /// Dtype of matmul operands and of the activations saved for backward. Norms, softmax, losses, sums and optimizer
    /// arithmetic are fp32.
    pub enum Precision {
        Fp32 = "fp32",
        /// fp32 whose matmul operands a GPU rounds to 11 significant bits.
        Tf32 = "tf32",
        Bf16 = "bf16",
        Fp16 = "fp16",
    }
}

impl Precision {
    /// The keyword in experiment files.
    pub fn name(self) -> &'static str {
        self.keyword()
    }

    /// The dtype of matmul operands in memory.
    pub fn dtype(self) -> DType {
        match self {
            Precision::Fp32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::Fp16 => DType::F16,
        }
    }
}
