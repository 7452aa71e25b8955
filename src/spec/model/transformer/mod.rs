//! `[model.transformer]`: its keys. The shape of a decoder's blocks is put together from choices that are independent of each
//! other; as they stand where nothing is said, they are GPT-2's.

mod activation;
mod choices;
mod counting;
mod dropout;
mod rotary;
mod rules;

use std::path::{Path, PathBuf};

pub use activation::MlpActivation;
pub use choices::{Norm, NormPlacement, Positions};
pub use dropout::Dropout;
pub(super) use dropout::RATE;
use dropout::Rates;
pub use rotary::{Rotary, RotaryScaling};

use super::{Architecture, Model};
use crate::declare::{Optional, section};
use crate::error::Problem;
use crate::kinds::{Count, DIMENSION, Flag, POSITIVE, word};
use crate::paths::OneFile;
use crate::tree::Table;
use data::{Given, Part, Sample};
use ops::{Activation, TensorType};

/// With the bounds of dimensions, it keeps products of sizes within 64 bits; no machine comes near them.
pub(super) const LAYERS: Count = Count(1..=1 << 14);

/// What a byte can be.
const BYTES: usize = 256;

/// PyTorch's.
const NORM_EPSILON: f64 = 1e-5;

section! {
    /// A decoder: blocks of attention and a feed-forward layer.
    pub struct Transformer {
        pub layers: usize = LAYERS;
        pub d_model: usize = DIMENSION;
        /// Of queries.
        pub heads: usize = DIMENSION;
        /// Positions in a sequence.
        pub context: usize = DIMENSION;
        /// Rows of the token embedding: at least as many as the data has tokens.
        pub vocabulary: usize = DIMENSION, default BYTES;
        /// What rows of the token embedding are multiplied by where they begin the residual stream.
        pub embedding_scale: Option<f64> = Optional(POSITIVE), default None;
        /// Of keys and values: as many heads of queries in a row share one.
        pub kv_heads: usize = DIMENSION, default as_many(heads);
        /// Channels of a head; 0 where nothing is said of it and the model's cannot be divided among them.
        pub head_dim: usize = DIMENSION, default share_of(d_model, heads);
        /// Whether a position sees no later ones.
        pub causal: bool = Flag, default true;
        /// How many positions one sees at most, its own and those right before it.
        pub window: Option<usize> = Optional(DIMENSION), default None;
        /// The last of so many blocks sees beyond the window.
        pub global_every: Option<usize> = Optional(LAYERS), default None;
        /// What queries' products with keys are multiplied by, if not by one over the root of their channels.
        pub attention_scale: Option<f64> = Optional(POSITIVE), default None;
        /// How far from 0 scores get, by `cap tanh(score / cap)`.
        pub attention_softcap: Option<f64> = Optional(POSITIVE), default None;
        /// Whether heads of queries and of keys are normalised, by the root of their mean squares.
        pub qk_norm: bool = Flag, default false;
        /// Width of the feed-forward layer.
        pub d_ff: usize = DIMENSION, default four_times(d_model);
        pub activation: MlpActivation = word(), default MlpActivation::Plain(Activation::GeluTanh);
        pub norm: Norm = word(), default Norm::Layer;
        pub norm_epsilon: f64 = POSITIVE, default NORM_EPSILON;
        pub norm_placement: NormPlacement = word(), default NormPlacement::Pre;
        pub positions: Positions = word(), default Positions::Learned;
        /// How queries and keys are rotated, if they are.
        pub rotary: Rotary = rotary::ROTARY, default Rotary::default();
        /// Whether linear layers have one. The head has none.
        pub bias: bool = Flag, default true;
        /// Whether the layer that makes queries, keys and values has one.
        pub qkv_bias: bool = Flag, default as_others(bias);
        /// Whether the head's weight is the token embedding.
        pub tied: bool = Flag, default true;
        /// How far logits get from 0, by `cap tanh(logit / cap)`.
        pub logit_softcap: Option<f64> = Optional(POSITIVE), default None;
        /// What is left out by chance while it learns.
        pub dropout: Dropout = Rates, default Dropout::default();
        /// A safetensors file that parameters start from, by an absolute path.
        pub weights: Option<PathBuf> = Optional(OneFile("final.safetensors")), default None;
    }
}

/// As wide as feed-forward layers have been since the first; of a width that could not be read, no matter.
fn four_times(d_model: impl Into<Option<usize>>) -> usize {
    4 * d_model.into().unwrap_or_default()
}

fn as_many(heads: impl Into<Option<usize>>) -> usize {
    heads.into().unwrap_or_default()
}

fn as_others(bias: impl Into<Option<bool>>) -> bool {
    bias.into().unwrap_or_default()
}

/// Nothing, where there is no such share.
fn share_of(d_model: impl Into<Option<usize>>, heads: impl Into<Option<usize>>) -> usize {
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
            head_dim: share_of(d_model, heads),
            causal: true,
            window: None,
            global_every: None,
            attention_scale: None,
            attention_softcap: None,
            qk_norm: false,
            d_ff: four_times(d_model),
            activation: MlpActivation::Plain(Activation::GeluTanh),
            norm: Norm::Layer,
            norm_epsilon: NORM_EPSILON,
            norm_placement: NormPlacement::Pre,
            positions: Positions::Learned,
            rotary: Rotary::default(),
            bias: true,
            qkv_bias: true,
            tied: true,
            logit_softcap: None,
            dropout: Dropout::default(),
            weights: None,
        }
    }

    /// How many positions one sees at most in a block, if there is a limit.
    pub fn window_of(&self, block: usize) -> Option<usize> {
        let is_global = self.global_every.is_some_and(|every| (block + 1).is_multiple_of(every));
        self.window.filter(|_| !is_global)
    }

    /// Tokens in a row, and what should follow each of them.
    pub fn parts(&self) -> [Part; 2] {
        let below = Some(Given { key: "model.transformer.vocabulary", count: self.vocabulary });
        ["tokens", "targets"].map(|name| Part { name, ty: TensorType::i32(&[self.context]), below })
    }
}

impl Architecture for Transformer {
    fn description(&self) -> String {
        let Transformer { layers, d_model, heads, kv_heads, context, vocabulary, .. } = self;
        let heads = if kv_heads == heads { heads.to_string() } else { format!("{heads}:{kv_heads}") };
        let sizes = format!("transformer {layers}x{d_model} H {heads} T {context} V {vocabulary}");
        [vec![sizes], self.unlike_gpt2()].concat().join(" ")
    }

    fn sample(&self) -> Sample {
        let length = Given { key: "model.transformer.context", count: self.context };
        Sample { parts: self.parts().to_vec(), length: Some(length), tokens: Some(self.context) }
    }

    fn draws(&self) -> bool {
        self.dropout.is_any()
    }

    fn evaluated(&self) -> Model {
        Model::Transformer(Transformer { dropout: Dropout::default(), ..self.clone() })
    }

    fn blocks(&self) -> Given {
        Given { key: "model.transformer.layers", count: self.layers }
    }

    fn weights(&self) -> Option<&Path> {
        self.weights.as_deref()
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.check_rules(tree)
    }

    fn sizes_can_be_counted(&self, batch_size: usize, tree: &Table) -> Result<(), Problem> {
        self.check_counts(batch_size, tree)
    }
}
