//! `optimizer_state` and `rounding`

use super::{StoredIn, Strategy};
use crate::ops::{self, GradientTerms, Shape, StateFormat, UpdateFormat, WeightFormat};
use crate::spec::declare::words;
use crate::spec::resolved::RunConfig;

words! {
    /// What the optimizer's numbers for each parameter are stored as. Updates are computed in fp32.
    pub enum OptimizerState {
        Fp32 = "fp32",
        Bf16 = "bf16",
        /// Codes of 8 bits in blocks that share a scale, of the tensors that `quantize` says.
        EightBit = "8bit",
    }
}

words! {
    /// How numbers are stored in 16 bits.
    pub enum Rounding {
        Nearest = "nearest",
        /// Up or down, by chance and so that the mean is right.
        Stochastic = "stochastic",
    }
}

impl RunConfig {
    /// How a trained parameter of a shape and what the optimizer keeps of it are stored; its rows may be looked up by their
    /// numbers.
    pub fn update_format(&self) -> impl Fn(&Shape, bool) -> UpdateFormat {
        let Strategy { optimizer_state, quantize, rounding, params, .. } = self.strategy;
        let update = self.train.optimizer.update(GradientTerms::default(), UpdateFormat::default());
        let keeps_none = update.states().is_empty();
        let rounding = match rounding {
            Rounding::Nearest => ops::Rounding::Nearest,
            Rounding::Stochastic => ops::Rounding::Stochastic { seed: self.train.seed },
        };
        let weights = match params {
            StoredIn::Fp32 => WeightFormat::default(),
            StoredIn::Bf16 | StoredIn::Fp16 if self.strategy.has_master_weights() => {
                WeightFormat::Master(params.dtype())
            }
            StoredIn::Bf16 | StoredIn::Fp16 => WeightFormat::InPlace(rounding),
        };
        let states = move |shape: &Shape, looked_up| match optimizer_state {
            _ if keeps_none => StateFormat::F32,
            OptimizerState::Fp32 => StateFormat::F32,
            OptimizerState::Bf16 => StateFormat::Bf16(rounding),
            OptimizerState::EightBit if quantize.includes(shape, looked_up) => StateFormat::Quantized,
            OptimizerState::EightBit => StateFormat::F32,
        };
        move |shape, looked_up| UpdateFormat { states: states(shape, looked_up), weights }
    }
}
