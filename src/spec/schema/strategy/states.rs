//! `optimizer_state` and `rounding`

use super::{StorageDtype, Strategy};
use crate::reader::declare::keywords;
use crate::schema::resolved::RunConfig;
use ops::{Rule, Shape, StateFormat, UpdateFormat, WeightFormat};

keywords! {
    /// Storage dtype of optimizer states. Updates are computed in fp32.
    pub enum OptimizerState {
        Fp32 = "fp32",
        Bf16 = "bf16",
        /// 8-bit codes with one scale per block, for the tensors that `quantize` selects.
        EightBit = "8bit",
    }
}

keywords! {
    /// Rounding to 16 bits.
    pub enum Rounding {
        Nearest = "nearest",
        /// Up or down at random, with probabilities that make the mean exact.
        Stochastic = "stochastic",
    }
}

impl RunConfig {
    /// The storage of a trained parameter and its optimizer states, given its rule, its shape and whether it is an
    /// embedding table.
    pub fn update_format(&self) -> impl Fn(&Rule, &Shape, bool) -> UpdateFormat {
        let Strategy { optimizer_state, quantize, rounding, params, .. } = self.strategy;
        let rounding = match rounding {
            Rounding::Nearest => ops::Rounding::Nearest,
            Rounding::Stochastic => ops::Rounding::Stochastic { seed: self.train.seed },
        };
        let weights = match params {
            StorageDtype::Fp32 => WeightFormat::default(),
            StorageDtype::Bf16 | StorageDtype::Fp16 if self.strategy.has_master_weights() => {
                WeightFormat::Master(params.dtype())
            }
            StorageDtype::Bf16 | StorageDtype::Fp16 => WeightFormat::InPlace(rounding),
        };
        let states = move |rule: &Rule, shape: &Shape, looked_up| match optimizer_state {
            _ if rule.moments().is_empty() => StateFormat::F32,
            OptimizerState::Fp32 => StateFormat::F32,
            OptimizerState::Bf16 => StateFormat::Bf16(rounding),
            OptimizerState::EightBit if quantize.includes(shape, looked_up) => StateFormat::Quantized,
            OptimizerState::EightBit => StateFormat::F32,
        };
        move |rule, shape, looked_up| UpdateFormat { states: states(rule, shape, looked_up), weights }
    }
}
