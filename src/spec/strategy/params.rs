//! `params`, and what follows them: `master_weights`, `gradient_dtype`, `residual`.

use super::{Precision, Strategy};
use crate::ops::DType;
use crate::spec::declare::{Words, words};
use crate::spec::error::Problem;
use crate::spec::rules::blame;
use crate::spec::tree::{Table, quoted};

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

    /// Without a copy, parameters are what is trained, in fp32.
    pub(in crate::spec) fn master_weights_are_of_something(&self, tree: &Table) -> Result<(), Problem> {
        if self.master_weights || self.params != StoredIn::Fp32 {
            return Ok(());
        }
        Err(blame(
            "master_weights = false leaves parameters of 16 bits without a copy in fp32; params = \"fp32\" has none"
                .to_owned(),
            &["strategy.master_weights", "strategy.params"],
            tree,
            "params = \"bf16\" or \"fp16\" do, or leave master_weights out",
        ))
    }

    /// Gradients and the residual stream are stored as parameters are, or in fp32.
    pub(in crate::spec) fn follows_params(&self, tree: &Table) -> Result<(), Problem> {
        let params = quoted(self.params.word());
        let of = [("gradient_dtype", self.gradient_dtype), ("residual", self.residual)];
        for (key, stored) in of {
            if stored != StoredIn::Fp32 && stored != self.params {
                let word = quoted(stored.word());
                return Err(blame(
                    format!(
                        "{key} = {word} is neither \"fp32\" nor that of the parameters, params = {params}"
                    ),
                    &[&format!("strategy.{key}"), "strategy.params"],
                    tree,
                    format!("{key} = \"fp32\" or params = {word}"),
                ));
            }
        }
        Ok(())
    }

    /// Matrix work is done on what is stored in 16 bits as it is, or all that it makes is in fp32.
    pub(in crate::spec) fn computes_with_params(&self, tree: &Table) -> Result<(), Problem> {
        let own = Precision::of(self.params);
        if own == Precision::Fp32 || self.precision == own {
            return Ok(());
        }
        let (params, precision) = (quoted(self.params.word()), quoted(self.precision.word()));
        let is_full = self.precision.dtype() == DType::F32;
        if !is_full {
            return Err(blame(
                format!("precision = {precision} is another type of 16 bits than params = {params}"),
                &["strategy.precision", "strategy.params"],
                tree,
                format!("precision = {params}, or \"fp32\" with gradient_dtype and residual = \"fp32\", do"),
            ));
        }
        for (key, stored) in [("gradient_dtype", self.gradient_dtype), ("residual", self.residual)] {
            if stored != StoredIn::Fp32 {
                let word = quoted(stored.word());
                return Err(blame(
                    format!("precision = {precision} makes results of 32 bits; {key} = {word} stores 16"),
                    &["strategy.precision", &format!("strategy.{key}"), "strategy.params"],
                    tree,
                    format!("{key} = \"fp32\", or precision = {params}"),
                ));
            }
        }
        Ok(())
    }
}
