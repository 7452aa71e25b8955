//! `[model.transformer]`: the keys of a decoder. Its blocks are composed of independent choices, whose defaults are
//! GPT-2's.

mod activation;
mod choices;
mod counting;
mod dropout;
mod experts;
mod rotary;
mod rules;

use std::path::{Path, PathBuf};

pub use activation::MlpActivation;
pub use choices::{Norm, NormPlacement, Positions, QkNormOver, SubLayers};
pub use dropout::Dropout;
use dropout::DropoutCodec;
pub(in crate::schema) use dropout::RATE;
pub use experts::Experts;
pub(in crate::schema) use experts::{COUNT, PER_TOKEN};
pub use rotary::{Rotary, RotaryScaling};

use super::{Architecture, Model, ModelFamily};
use crate::reader::declare::{Optional, key_table};
use crate::reader::error::Problem;
use crate::reader::parsers::{Boolean, DIMENSION, POSITIVE, UsizeRange, keyword};
use crate::reader::paths::file_path;
use crate::reader::tree::Table;
use data::{KeyedCount, Sample, row};
use ops::{Activation, Frequencies};

/// Together with the bounds of dimensions, it keeps products of sizes within 64 bits; no machine comes near it.
pub(super) const LAYERS: UsizeRange = UsizeRange(1..=1 << 14);

/// Number of byte values.
const BYTES: usize = 256;

/// PyTorch's default.
const NORM_EPSILON: f64 = 1e-5;

/// GPT-2's.
const DEVIATION: f64 = 0.02;

key_table! {
    /// A decoder: blocks of attention and a feed-forward layer.
    pub struct Transformer {
        /// Number of blocks.
        pub layers: usize = LAYERS;
        /// Channels of the residual stream.
        pub d_model: usize = DIMENSION;
        /// Query heads of attention.
        pub heads: usize = DIMENSION;
        /// Context length in tokens: the positions of a sequence.
        pub context: usize = DIMENSION;
        /// Rows of the token embedding; more than the largest token id of the data.
        pub vocabulary: usize = DIMENSION, default BYTES;
        /// Factor that multiplies the token embeddings where they enter the residual stream (Gemma).
        pub embedding_scale: Option<f64> = Optional(POSITIVE), default None;
        /// Key and value heads; `heads / kv_heads` consecutive query heads share one (grouped-query attention).
        pub kv_heads: usize = DIMENSION, default same_number(heads);
        /// Channels per head; by default `d_model / heads`.
        pub head_dim: usize = DIMENSION, default head_dim_of(d_model, heads);
        /// Whether attention is causal: positions do not attend to later ones.
        pub causal: bool = Boolean, default true;
        /// Sliding window: the number of positions that each position attends to, its own included. Needs `causal =
        /// true`.
        pub window: Option<usize> = Optional(DIMENSION), default None;
        /// Every n-th block attends to the full context instead of the window. Needs `window`.
        pub global_every: Option<usize> = Optional(LAYERS), default None;
        /// The first block that attends to the full context, from 1; by default `global_every`. Needs `global_every`.
        pub global_first: Option<usize> = Optional(LAYERS), default None;
        /// Factor of the attention scores; by default one over the square root of `head_dim`.
        pub attention_scale: Option<f64> = Optional(POSITIVE), default None;
        /// Factor of the attention scores of blocks with a window; by default `attention_scale`. Needs `window`.
        pub window_attention_scale: Option<f64> = Optional(POSITIVE), default None;
        /// Soft cap of attention scores: `cap * tanh(score / cap)` (Gemma 2).
        pub attention_softcap: Option<f64> = Optional(POSITIVE), default None;
        /// Whether each query and key head is normalized by RMS norm (Qwen 3).
        pub qk_norm: bool = Boolean, default false;
        /// The channels that a norm of queries and keys covers: each head's, or those of all heads together (OLMo 2). Needs
        /// `qk_norm = true`.
        pub qk_norm_over: QkNormOver = keyword(), default QkNormOver::Head;
        /// Width of the feed-forward layer, or of each expert.
        pub d_ff: usize = DIMENSION, default four_times(d_model);
        /// Activation of the feed-forward layer, elementwise or as a gated linear unit.
        pub activation: MlpActivation = keyword(), default MlpActivation::Plain(Activation::GeluTanh);
        /// Experts in place of the feed-forward layer: a mixture of experts. They need a gated `activation` and `bias = false`.
        pub experts: Option<Experts> = Optional(experts::EXPERTS), default None;
        /// Normalization: layer norm or RMS norm.
        pub norm: Norm = keyword(), default Norm::Layer;
        /// Added to the variance, or to the mean square, before its square root (`eps`).
        pub norm_epsilon: f64 = POSITIVE, default NORM_EPSILON;
        /// Factor of what each part of a block adds to the residual stream (Granite).
        pub residual_scale: Option<f64> = Optional(POSITIVE), default None;
        /// Norms before each part of a block, after it, or both.
        pub norm_placement: NormPlacement = keyword(), default NormPlacement::Pre;
        /// Whether the feed-forward layer of a block reads the output of attention, or both read the block's input
        /// (GPT-NeoX, Falcon). Parallel ones need `norm_placement = "pre"`.
        pub sub_layers: SubLayers = keyword(), default SubLayers::Sequential;
        /// Position encoding.
        pub positions: Positions = keyword(), default Positions::Learned;
        /// Rotary position embedding. Only with `positions = "rotary"`.
        pub rotary: Rotary = rotary::ROTARY, default Rotary::default();
        /// Whether the linear layers of blocks have biases.
        pub bias: bool = Boolean, default true;
        /// Whether the linear layer that computes queries, keys and values has a bias; by default as `bias`.
        pub qkv_bias: bool = Boolean, default same_flag(bias);
        /// Whether the head shares its weight with the token embedding (weight tying).
        pub tied: bool = Boolean, default true;
        /// Whether the head has a bias, which `logit_scale` does not scale. Needs `tied = false`.
        pub head_bias: bool = Boolean, default false;
        /// Factor of the logits (Granite's is one over `logits_scaling`).
        pub logit_scale: Option<f64> = Optional(POSITIVE), default None;
        /// Soft cap of logits: `cap * tanh(logit / cap)` (Gemma 2).
        pub logit_softcap: Option<f64> = Optional(POSITIVE), default None;
        /// Dropout probabilities: one number for all places, or a table. No effect in evaluation.
        pub dropout: Dropout = DropoutCodec, default Dropout::default();
        /// Standard deviation of randomly initialized weights; that of projections into the residual stream is divided by
        /// the square root of their number (`initializer_range`).
        pub initial_deviation: f64 = POSITIVE, default DEVIATION;
        /// The family of the model in the transformers library, from `model.hf`: it decides the names of layers for `lora`, and
        /// of saved tensors. By default, the first family with this architecture.
        pub family: Option<ModelFamily> = Optional(keyword()), default None;
        /// Safetensors file with the initial parameters; a relative path starts at the folder of the file that writes
        /// it.
        pub weights: Option<PathBuf> = Optional(file_path("final.safetensors")), default None;
    }
}

/// The default width of the original transformer. `None` is a width that could not be read: any value serves.
fn four_times(d_model: impl Into<Option<usize>>) -> usize {
    4 * d_model.into().unwrap_or_default()
}

fn same_number(heads: impl Into<Option<usize>>) -> usize {
    heads.into().unwrap_or_default()
}

fn same_flag(bias: impl Into<Option<bool>>) -> bool {
    bias.into().unwrap_or_default()
}

/// 0 if `heads` does not divide `d_model`, which `heads_divide_d_model` reports.
fn head_dim_of(d_model: impl Into<Option<usize>>, heads: impl Into<Option<usize>>) -> usize {
    let (d_model, heads) = (d_model.into().unwrap_or_default(), heads.into().unwrap_or_default());
    if d_model.is_multiple_of(heads) { d_model / heads.max(1) } else { 0 }
}

impl Transformer {
    /// GPT-2's blocks on bytes.
    pub fn new(layers: usize, d_model: usize, heads: usize, context: usize) -> Transformer {
        Transformer {
            layers,
            d_model,
            heads,
            context,
            vocabulary: BYTES,
            embedding_scale: None,
            kv_heads: heads,
            head_dim: head_dim_of(d_model, heads),
            causal: true,
            window: None,
            global_every: None,
            global_first: None,
            attention_scale: None,
            window_attention_scale: None,
            attention_softcap: None,
            qk_norm: false,
            qk_norm_over: QkNormOver::Head,
            d_ff: four_times(d_model),
            activation: MlpActivation::Plain(Activation::GeluTanh),
            experts: None,
            norm: Norm::Layer,
            norm_epsilon: NORM_EPSILON,
            residual_scale: None,
            norm_placement: NormPlacement::Pre,
            sub_layers: SubLayers::Sequential,
            positions: Positions::Learned,
            rotary: Rotary::default(),
            bias: true,
            qkv_bias: true,
            tied: true,
            head_bias: false,
            logit_scale: None,
            logit_softcap: None,
            dropout: Dropout::default(),
            initial_deviation: DEVIATION,
            family: None,
            weights: None,
        }
    }

    /// The attention window of a block in positions, its own included; `None` if it attends to the full context.
    pub fn window_of(&self, block: usize) -> Option<usize> {
        let number = block + 1;
        let is_global = self.global_every.is_some_and(|every| match self.global_first {
            Some(first) => number >= first && (number - first).is_multiple_of(every),
            None => number.is_multiple_of(every),
        });
        self.window.filter(|_| !is_global)
    }

    /// The factor of a block's attention scores; `None`: one over the square root of a head's channels.
    pub fn attention_scale_of(&self, block: usize) -> Option<f64> {
        self.window_attention_scale.filter(|_| self.window_of(block).is_some()).or(self.attention_scale)
    }

    /// The rotated channels of a head.
    pub fn rotated_channels(&self) -> usize {
        self.rotary.channels.unwrap_or(self.head_dim)
    }

    /// The frequencies of a block's rotation; `None` if it does not rotate.
    pub fn rotation_of(&self, block: usize) -> Option<Frequencies> {
        let Rotary { window_base, skip_every, .. } = self.rotary;
        let is_skipped = skip_every.is_some_and(|every| (block + 1).is_multiple_of(every));
        if self.positions != Positions::Rotary || is_skipped {
            return None;
        }
        Some(match window_base.filter(|_| self.window_of(block).is_some()) {
            Some(base) => Frequencies { base, scaling: None, divisors: Vec::new() },
            None => self.rotary.frequencies(),
        })
    }
}

impl Architecture for Transformer {
    fn description(&self) -> String {
        let Transformer { layers, d_model, heads, kv_heads, context, vocabulary, .. } = self;
        let heads = if kv_heads == heads { heads.to_string() } else { format!("{heads}:{kv_heads}") };
        let sizes = format!("transformer {layers}x{d_model} H {heads} T {context} V {vocabulary}");
        [vec![sizes], self.differences_to_gpt2()].concat().join(" ")
    }

    fn sample(&self, tokens: Option<usize>) -> Sample {
        let below = KeyedCount { key: "model.transformer.vocabulary", count: self.vocabulary };
        let tokens = tokens.unwrap_or(self.context);
        let length = KeyedCount { key: "model.transformer.context", count: tokens };
        Sample { parts: row::parts(tokens, Some(below)).to_vec(), length: Some(length) }
    }

    fn draws(&self) -> bool {
        self.dropout.is_any()
    }

    fn evaluated(&self) -> Model {
        Model::Transformer(Transformer { dropout: Dropout::default(), ..self.clone() })
    }

    fn recompute_units(&self) -> KeyedCount {
        KeyedCount { key: "model.transformer.layers", count: self.layers }
    }

    fn weights(&self) -> Option<&Path> {
        self.weights.as_deref()
    }

    fn output_elements(&self) -> usize {
        self.context * self.vocabulary
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.check_rules(tree)
    }

    fn sizes_can_be_counted(&self, batch: (&str, usize), tree: &Table) -> Result<(), Problem> {
        self.check_counts(batch, tree)
    }
}
