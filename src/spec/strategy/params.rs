//! `params`, and what follows them: `master_weights`, `gradient_dtype`, `residual`.

use super::{Precision, Strategy};
use crate::declare::words;
use ops::DType;

words! {
    /// What numbers are stored in.
    pub enum StoredIn {
        Fp32 = "fp32",
        Bf16 = "bf16",
        Fp16 = "fp16",
    }
}

impl StoredIn {
    pub fn dtype(self) -> DType {
        match self {
            StoredIn::Fp32 => DType::F32,
            StoredIn::Bf16 => DType::BF16,
            StoredIn::Fp16 => DType::F16,
        }
    }

    /// What gradients are stored in where nothing is said of them.
    pub(super) fn of_gradients(params: impl Into<Option<StoredIn>>) -> StoredIn {
        params.into().unwrap_or(StoredIn::Fp32)
    }

    /// What the residual stream is stored in where nothing is said of it: what trains without a copy of its parameters in
    /// fp32 has nothing else in fp32 either.
    pub(super) fn of_residual(
        params: impl Into<Option<StoredIn>>,
        master_weights: impl Into<Option<bool>>,
    ) -> StoredIn {
        match (params.into(), master_weights.into()) {
            (Some(params), Some(false)) => params,
            _ => StoredIn::Fp32,
        }
    }
}

impl Precision {
    /// Where nothing is said of it: that of parameters in 16 bits.
    pub(super) fn of(params: impl Into<Option<StoredIn>>) -> Precision {
        match params.into() {
            Some(StoredIn::Bf16) => Precision::Bf16,
            Some(StoredIn::Fp16) => Precision::Fp16,
            Some(StoredIn::Fp32) | None => Precision::Fp32,
        }
    }
}

impl Strategy {
    /// Whether the optimizer keeps a copy of the parameters in fp32.
    pub fn has_master_weights(&self) -> bool {
        self.params != StoredIn::Fp32 && self.master_weights
    }
}
