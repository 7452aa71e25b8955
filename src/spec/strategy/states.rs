//! `optimizer_state` and `rounding`

use super::{StoredIn, Strategy};
use crate::ops::{self, GradientTerms, Shape, StateFormat, UpdateFormat, WeightFormat};
use crate::spec::declare::{Words, words};
use crate::spec::error::Problem;
use crate::spec::resolved::RunConfig;
use crate::spec::rules::blame;
use crate::spec::tree::{Table, quoted};

words! {
    /// What the optimizer's numbers for each parameter are stored as. Updates are computed in fp32.
    pub enum OptimizerState {
        Fp32 = "fp32",
        Bf16 = "bf16",
        /// Codes of 8 bits in blocks that share a scale; small tensors and embedding tables are left in fp32.
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

/// Tensors of fewer numbers are not worth quantizing: they take little memory, and norms and biases little error.
const LEAST_QUANTIZED: usize = 4096;

impl RunConfig {
    /// How a trained parameter of a shape and what the optimizer keeps of it are stored; its rows may be looked up by their
    /// numbers: the gradients of most of these are zero in a step, and of the others large.
    pub fn update_format(&self) -> impl Fn(&Shape, bool) -> UpdateFormat {
        let Strategy { optimizer_state, rounding, params, .. } = self.strategy;
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
            OptimizerState::EightBit if looked_up || shape.elements() < LEAST_QUANTIZED => StateFormat::F32,
            OptimizerState::EightBit => StateFormat::Quantized,
        };
        move |shape, looked_up| UpdateFormat { states: states(shape, looked_up), weights }
    }
}

impl Strategy {
    pub(in crate::spec) fn rounds_something(&self, tree: &Table) -> Result<(), Problem> {
        let updates_16_bits = self.params != StoredIn::Fp32 && !self.has_master_weights();
        if self.rounding == Rounding::Nearest
            || self.optimizer_state == OptimizerState::Bf16
            || updates_16_bits
        {
            return Ok(());
        }
        let state = quoted(self.optimizer_state.word());
        Err(blame(
            format!(
                "rounding = \"stochastic\" is of what an update stores in 16 bits; optimizer_state = {state} stores nothing so"
            ),
            &["strategy.rounding", "strategy.optimizer_state"],
            tree,
            "optimizer_state = \"bf16\" does, or params = \"bf16\" with master_weights = false",
        ))
    }
}
