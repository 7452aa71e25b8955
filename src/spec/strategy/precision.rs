//! `precision`

use crate::declare::{Words, words};
use ops::DType;

words! {
    /// What matrix work is done in, and what is kept of it for backward. Norms, softmax, losses and all sums are fp32,
    /// as are parameters and what the optimizer does.
    pub enum Precision {
        Fp32 = "fp32",
        /// fp32 whose products a card rounds to 11 bits of significand.
        Tf32 = "tf32",
        Bf16 = "bf16",
        Fp16 = "fp16",
    }
}

impl Precision {
    /// As experiments write it.
    pub fn name(self) -> &'static str {
        self.word()
    }

    /// The type of the operands of matrix work.
    pub fn dtype(self) -> DType {
        match self {
            Precision::Fp32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::Fp16 => DType::F16,
        }
    }
}
