//! `[model.transformer]`

use std::path::{Path, PathBuf};

use super::Architecture;
use crate::data::{Given, Part, Sample};
use crate::ops::TensorType;
use crate::spec::declare::{Optional, section};
use crate::spec::error::Problem;
use crate::spec::kinds::{Count, DIMENSION};
use crate::spec::paths::OneFile;
use crate::spec::rules::{blame, divisors};
use crate::spec::tree::Table;

/// With the bounds of dimensions, it keeps products of sizes within 64 bits; no machine comes near them.
const LAYERS: Count = Count(1..=1 << 14);

/// What a byte can be.
const BYTES: usize = 256;

section! {
    /// A decoder of GPT-2 blocks: pre-norm, tanh GELU, learned positions, causal attention, head tied to the token
    /// embedding.
    #[derive(Eq)]
    pub struct Transformer {
        pub layers: usize = LAYERS;
        pub d_model: usize = DIMENSION;
        pub heads: usize = DIMENSION;
        /// Positions in a sequence.
        pub context: usize = DIMENSION;
        /// Rows of the token embedding: at least as many as the data has tokens.
        pub vocabulary: usize = DIMENSION, default BYTES;
        /// A safetensors file that parameters start from, by an absolute path.
        pub weights: Option<PathBuf> = Optional(OneFile), default None;
    }
}

impl Transformer {
    /// Tokens in a row, and what should follow each of them.
    pub fn parts(&self) -> [Part; 2] {
        let below = Some(Given { key: "model.transformer.vocabulary", count: self.vocabulary });
        ["tokens", "targets"].map(|name| Part { name, ty: TensorType::i32(&[self.context]), below })
    }
}

impl Architecture for Transformer {
    fn description(&self) -> String {
        let Transformer { layers, d_model, heads, context, vocabulary, weights: _ } = self;
        format!("transformer {layers}x{d_model} H {heads} T {context} V {vocabulary}")
    }

    fn sample(&self) -> Sample {
        let length = Given { key: "model.transformer.context", count: self.context };
        Sample { parts: self.parts().to_vec(), length: Some(length), tokens: Some(self.context) }
    }

    fn blocks(&self) -> Given {
        Given { key: "model.transformer.layers", count: self.layers }
    }

    fn weights(&self) -> Option<&Path> {
        self.weights.as_deref()
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        let Transformer { heads, d_model, .. } = *self;
        if d_model.is_multiple_of(heads) {
            return Ok(());
        }
        Err(blame(
            format!(
                "model.transformer.heads = {heads} does not divide model.transformer.d_model = {d_model}"
            ),
            &["model.transformer.heads", "model.transformer.d_model"],
            tree,
            divisors(d_model, heads),
        ))
    }

    fn sizes_can_be_counted(&self, batch_size: usize, tree: &Table) -> Result<(), Problem> {
        let wide = |size: usize| size as u128;
        let Transformer { layers, d_model, heads, context, vocabulary, weights: _ } = *self;
        let [layers, channels, heads, context, vocabulary] =
            [layers, d_model, heads, context, vocabulary].map(wide);
        let parameters = channels * (vocabulary + context + 2) + layers * channels * (12 * channels + 13);
        const KEYS: [&str; 5] = [
            "model.transformer.d_model",
            "model.transformer.layers",
            "model.transformer.heads",
            "model.transformer.context",
            "model.transformer.vocabulary",
        ];
        if parameters > 1 << 40 {
            return Err(blame(
                format!("the model would have {parameters} parameters"),
                &KEYS,
                tree,
                "up to 2^40, about 10^12, work",
            ));
        }
        let tokens = wide(batch_size) * context;
        let activations = tokens * (layers * (32 * channels + 4 * heads * context) + 4 * vocabulary);
        let work = 16 * tokens * (parameters + layers * context * channels);
        if activations > 1 << 57 || work > 1 << 62 {
            return Err(blame(
                format!("one step of {tokens} tokens would be more than can be counted"),
                &["train.batch_size", "model.transformer.context"],
                tree,
                "use smaller batches, shorter sequences or a smaller model",
            ));
        }
        Ok(())
    }
}
