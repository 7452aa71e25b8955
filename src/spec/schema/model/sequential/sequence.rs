//! Layers of sequences [length, channels]: embeddings, positions, attention, and blocks of a transformer.

use super::layer::{ActivationLayer, Layer, LayerActivation, LinearLayer, NormLayer};
use super::modules::Module;
use crate::reader::declare::{key_table, keywords};
use crate::reader::parsers::{Boolean, DIMENSION, keyword};
use crate::schema::model::RATE;
use ops::Activation;

key_table! {
    /// A learned vector for each integer id of the input, which becomes a sequence (PyTorch: `nn.Embedding`). Only as the
    /// first layer.
    #[derive(Copy)]
    pub struct EmbeddingLayer {
        /// Number of ids (`num_embeddings`).
        pub count: usize = DIMENSION;
        /// Output channels (`embedding_dim`).
        pub dim: usize = DIMENSION;
    }
}

key_table! {
    /// Self-attention of a sequence (PyTorch: `nn.MultiheadAttention`): one linear layer for queries, keys and values,
    /// and one of the output.
    #[derive(Copy)]
    pub struct AttentionLayer {
        /// Attention heads, which divide the channels.
        pub heads: usize = DIMENSION;
        /// Whether positions do not attend to later ones.
        pub causal: bool = Boolean, default false;
        /// Whether the linear layers have biases.
        pub bias: bool = Boolean, default true;
        /// Dropout of the attention weights, after the softmax.
        pub dropout: f64 = RATE, default 0.0;
    }
}

key_table! {
    /// Attention and a feed-forward layer, each with a norm and added to its input (PyTorch:
    /// `nn.TransformerEncoderLayer(batch_first=True)`).
    #[derive(Copy)]
    pub struct TransformerBlock {
        /// Attention heads, which divide the channels.
        pub heads: usize = DIMENSION;
        /// Features between the feed-forward matmuls (`dim_feedforward`).
        pub hidden: usize = DIMENSION;
        /// Activation between the feed-forward matmuls.
        pub activation: LayerActivation = keyword(), default LayerActivation(Activation::Relu);
        /// Whether norms precede attention and feed-forward layer, or follow the additions.
        pub norm: BlockNorm = keyword(), default BlockNorm::Post;
        /// Whether positions do not attend to later ones.
        pub causal: bool = Boolean, default false;
        /// Dropout of attention weights, of the activation, and of what is added. PyTorch's default is 0.1.
        pub dropout: f64 = RATE, default 0.0;
    }
}

keywords! {
    /// The place of a block's norms.
    pub enum BlockNorm {
        /// `x + part(norm(x))` (`norm_first=True`).
        Pre = "pre",
        /// `norm(x + part(x))`
        Post = "post",
    }
}

/// A part of a block: layers whose output is added to their input, and layers after the addition.
#[derive(Clone, Debug)]
pub struct Branch {
    added: Vec<(&'static str, Layer)>,
    after: Vec<(&'static str, Layer)>,
}

impl TransformerBlock {
    /// Attention and feed-forward layer, as layers with the names of `nn.TransformerEncoderLayer`.
    pub fn branches(&self, channels: usize) -> [Branch; 2] {
        let TransformerBlock { heads, hidden, activation, norm, causal, dropout } = *self;
        let linear = |out| Layer::Linear(LinearLayer { out, bias: true });
        let branch = |norm_name, layers: Vec<(&'static str, Layer)>| {
            let normalised = vec![(norm_name, Layer::LayerNorm(NormLayer::default()))];
            match norm {
                BlockNorm::Pre => Branch { added: [normalised, layers].concat(), after: Vec::new() },
                BlockNorm::Post => Branch { added: layers, after: normalised },
            }
        };
        let attention = Layer::Attention(AttentionLayer { heads, causal, bias: true, dropout });
        let dropped = |name| (dropout > 0.0).then_some((name, Layer::Dropout(dropout)));
        let attention = [("self_attn", attention)].into_iter().chain(dropped("dropout1"));
        let activated = [
            ("linear1", linear(hidden)),
            ("activation", Layer::Activation(ActivationLayer::new(activation.0))),
        ];
        let feed_forward = activated
            .into_iter()
            .chain(dropped("dropout"))
            .chain([("linear2", linear(channels))])
            .chain(dropped("dropout2"));
        [branch("norm1", attention.collect()), branch("norm2", feed_forward.collect())]
    }
}

impl Branch {
    /// The layers whose output is added to their input.
    pub fn added(&self) -> Vec<Module<'_>> {
        modules(&self.added)
    }

    /// The layers after the addition.
    pub fn after(&self) -> Vec<Module<'_>> {
        modules(&self.after)
    }

    /// All layers, in their order.
    pub(super) fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.added.iter().chain(&self.after).map(|(_, layer)| layer)
    }
}

fn modules<'a>(layers: &'a [(&'static str, Layer)]) -> Vec<Module<'a>> {
    let module = |(name, layer): &'a (&'static str, Layer)| Module { path: (*name).to_owned(), layer };
    layers.iter().map(module).collect()
}
