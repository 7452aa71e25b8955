//! `params`, and the keys whose defaults depend on it: `master_weights`, `gradient_dtype`, `residual`.

use super::{Precision, Strategy};
use crate::reader::declare::{KeywordEnum as _, keywords};
use ops::DType;

keywords! {
    /// Storage dtype.
    pub enum StorageDtype {
        Fp32 = "fp32",
        Bf16 = "bf16",
        Fp16 = "fp16",
    }
}

impl StorageDtype {
    pub fn dtype(self) -> DType {
        match self {
            StorageDtype::Fp32 => DType::F32,
            StorageDtype::Bf16 => DType::BF16,
            StorageDtype::Fp16 => DType::F16,
        }
    }

    /// The storage dtype that is this dtype, if one is.
    pub fn of(dtype: DType) -> Option<StorageDtype> {
        StorageDtype::ALL.iter().copied().find(|storage| storage.dtype() == dtype)
    }

    /// The default of `gradient_dtype`: that of the parameters.
    pub(super) fn default_for_gradients(params: impl Into<Option<StorageDtype>>) -> StorageDtype {
        params.into().unwrap_or(StorageDtype::Fp32)
    }

    /// The default of `residual`: fp32, or the parameters' dtype if they have no fp32 master copy.
    pub(super) fn default_for_residual(
        params: impl Into<Option<StorageDtype>>,
        master_weights: impl Into<Option<bool>>,
    ) -> StorageDtype {
        match (params.into(), master_weights.into()) {
            (Some(params), Some(false)) => params,
            _ => StorageDtype::Fp32,
        }
    }
}

impl Precision {
    /// The default of `precision`: that of 16-bit parameters, else fp32.
    pub(super) fn default_for(params: impl Into<Option<StorageDtype>>) -> Precision {
        match params.into() {
            Some(StorageDtype::Bf16) => Precision::Bf16,
            Some(StorageDtype::Fp16) => Precision::Fp16,
            Some(StorageDtype::Fp32) | None => Precision::Fp32,
        }
    }
}

impl Strategy {
    /// Whether the optimizer keeps an fp32 copy of the parameters.
    pub fn has_master_weights(&self) -> bool {
        self.params != StorageDtype::Fp32 && self.master_weights
    }
}
