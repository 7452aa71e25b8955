//! The ledger of a program walked without storage.

use crate::device::{ByRole, Phase, Pool, Usage};

/// What a run will need, or where it will run out.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub device: Usage,
    pub host: Usage,
    pub out_of_memory: Option<OutOfMemory>,
    /// Trainable numbers in the model.
    pub parameters: u64,
    /// FLOPs of an optimizer step, without and with what is computed again.
    pub model_flops: u64,
    pub hardware_flops: u64,
}

/// A request that the pool could not meet: a result, not an accident.
#[derive(Clone, Debug, PartialEq)]
pub struct OutOfMemory {
    pub pool: Pool,
    pub phase: Phase,
    /// With its scope: `blocks.3.mlp linear-gelu`.
    pub operation: String,
    pub value: String,
    pub requested: u64,
    /// What the limit lacked to meet it.
    pub short: u64,
    pub live: ByRole,
}
