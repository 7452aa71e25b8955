//! The configuration of one run, complete: every default filled in, every rule between fields checked. It is
//! all that the floors above ever see.

use std::path::PathBuf;

use serde::Serialize;

use crate::data::{DataSet, TextSet};
use crate::ops::DType;

/// One run: a model on data, trained one way under one choice of memory strategies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunConfig {
    pub model: Model,
    pub data: Data,
    pub train: Train,
    pub evaluation: Option<Evaluation>,
    pub measure: Measure,
    pub strategy: Strategy,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    Transformer(Transformer),
}

impl Model {
    /// The name of its table in an experiment: `transformer` for `model.transformer`.
    pub fn name(&self) -> &'static str {
        match self {
            Model::Transformer(_) => "transformer",
        }
    }
}

/// A decoder of GPT-2 blocks: pre-norm, tanh GELU, learned positions, causal attention, head tied to the token
/// embedding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transformer {
    pub layers: usize,
    pub d_model: usize,
    pub heads: usize,
    /// Positions in a sequence.
    pub context: usize,
    /// Rows of the token embedding: at least as many as the data has tokens.
    pub vocabulary: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    Text(Text),
}

impl Data {
    /// What reads it.
    pub fn data_set(&self) -> Box<dyn DataSet> {
        match self {
            Data::Text(Text { paths, tokens: Tokens::Bytes, split }) => Box::new(TextSet::new(paths, *split)),
        }
    }
}

/// Files of text, in the order of their sorted paths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Text {
    /// Absolute paths and globs.
    pub paths: Vec<PathBuf>,
    pub tokens: Tokens,
    /// The share, from the front, that is trained on; the rest is evaluated on.
    pub split: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokens {
    /// Each byte is a token.
    Bytes,
}

impl Tokens {
    pub fn vocabulary(self) -> usize {
        match self {
            Tokens::Bytes => 256,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train {
    /// Sequences per optimizer step, whatever the micro-batch.
    pub batch_size: usize,
    /// Gradients are scaled down to this global norm.
    pub clip_norm: Option<f64>,
    /// At most 2^63 - 1, as far as integers reach in TOML.
    pub seed: u64,
    pub optimizer: Optimizer,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    AdamW(AdamW),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdamW {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
    pub weight_decay: f64,
    pub decay: Decay,
}

/// Which parameters weight decay applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Those with two dimensions: weights and embeddings, not biases and norms.
    Matrices,
    All,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evaluation {
    /// Optimizer steps between evaluations; there is one after the last step in any case.
    pub every: usize,
    /// Batches of `batch_size` sequences per evaluation.
    pub batches: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Measure {
    /// Optimizer steps that are not timed.
    pub warmup_steps: usize,
    /// Optimizer steps that are.
    pub steps: usize,
}

/// The memory choices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Strategy {
    /// Micro-batches per optimizer step.
    pub accumulate: usize,
    pub precision: Precision,
    /// With fp16 alone.
    pub loss_scale: Option<LossScale>,
    pub recompute: Recompute,
    pub release: Release,
    pub gradients: Gradients,
    pub allocator: Allocator,
    pub evaluation_pass: EvaluationPass,
    /// Whether stretches of the step are captured and replayed as CUDA graphs.
    pub graph: bool,
}

/// What a strategy that says nothing does.
impl Default for Strategy {
    fn default() -> Strategy {
        Strategy {
            accumulate: 1,
            precision: Precision::Fp32,
            loss_scale: None,
            recompute: Recompute::None,
            release: Release::Eager,
            gradients: Gradients::Free,
            allocator: Allocator::Arena,
            evaluation_pass: EvaluationPass::NoGrad,
            graph: false,
        }
    }
}

/// What matrix work is done in, and what is kept of it for backward. Norms, softmax, losses and all sums are fp32,
/// as are parameters and what the optimizer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    Fp32,
    /// fp32 whose products a card rounds to 11 bits of significand.
    Tf32,
    Bf16,
    Fp16,
}

impl Precision {
    /// As experiments write it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Fp32 => "fp32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::Fp16 => "fp16",
        }
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

/// What the loss is multiplied by, so that gradients do not vanish in half precision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScale {
    Static(f64),
    Dynamic(DynamicLossScale),
}

/// Backs off when a gradient overflows, grows when none has for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DynamicLossScale {
    pub initial: f64,
    /// What the scale is multiplied by after a step that overflowed.
    pub backoff: f64,
    /// What it is multiplied by after `interval` steps in a row that did not.
    pub growth: f64,
    pub interval: usize,
}

impl Default for DynamicLossScale {
    fn default() -> DynamicLossScale {
        DynamicLossScale { initial: 65536.0, backoff: 0.5, growth: 2.0, interval: 2000 }
    }
}

impl LossScale {
    pub fn initial(&self) -> f64 {
        match self {
            LossScale::Static(scale) => *scale,
            LossScale::Dynamic(dynamic) => dynamic.initial,
        }
    }
}

/// What is computed again in backward instead of kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Recompute {
    None,
    /// All of a block but its input.
    Block,
}

/// When memory that nothing will read again is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// After its last use.
    Eager,
    /// When the layer that used it last ends.
    Scope,
    /// At the end of the section.
    Step,
}

/// What becomes of gradients between steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradients {
    Free,
    /// Kept, and filled with zeros.
    Zero,
}

/// Where memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocator {
    /// One request for the whole run; values have planned places in it.
    Arena,
    /// One request for each value.
    Direct,
}

/// Whether evaluation keeps what a backward pass would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EvaluationPass {
    NoGrad,
    Grad,
}

impl RunConfig {
    /// Sequences that one forward and backward pass sees.
    pub fn micro_batch(&self) -> usize {
        self.train.batch_size / self.strategy.accumulate
    }
}
