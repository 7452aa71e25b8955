//! `LlamaModel`, and the models whose code differs from it by few lines: Mistral, Qwen 2, Qwen 3, SmolLM3, Granite, Gemma,
//! OLMo 2, Phi-3 and StarCoder2.
//!
//! B batch, T sequence, C channels, H query heads, G key and value heads, D channels per head, R of them rotated.

use std::rc::Rc;

use super::body::{
    Body, Cache, Layer, Positions, call_layers, gradient_layout, require_gradients, uses_cache,
};
use super::class::Class;
use super::layers::{Maker, ModuleWeight, rotary_embedding};
use super::mlp::Mlp;
use super::norm::Norm;
use super::projections::{Projected, Projections};
use crate::functions::{self, Heads, Layout};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use spec::{ModelFamily, RunConfig, Transformer};

pub(super) struct Decoder {
    /// [V, C]
    embedding: ModuleWeight,
    /// The factor of embeddings.
    scale: Option<Scale>,
    layers: Vec<Rc<DecoderLayer>>,
    norm: Norm,
    /// `inv_freq` and its copy, [R/2].
    _frequencies: [Tensor; 2],
    class: Class,
    rotated: usize,
    /// Whether embeddings have dropout (StarCoder2).
    has_dropout: bool,
    /// Every n-th layer is checkpointed (`every_n_layers`).
    checkpointed: Option<usize>,
}

/// How embeddings are scaled.
enum Scale {
    /// By a number (Granite).
    Number,
    /// By a buffer of the embedding (Gemma).
    Buffer(Tensor),
}

/// `LlamaDecoderLayer`
struct DecoderLayer {
    attention: Attention,
    mlp: Mlp,
    class: Class,
    /// The norm of attention, and that of the feed-forward layer.
    norms: [Norm; 2],
    /// Whether results have dropout before they are added to the residual stream (Phi-3).
    has_dropout: bool,
}

/// `LlamaAttention`
struct Attention {
    projections: Projections,
    class: Class,
    /// Whether the layer rotates queries and keys.
    rotates: bool,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    has_dropout: bool,
    /// Whether the output has dropout (StarCoder2).
    has_output_dropout: bool,
}

impl Decoder {
    /// The model on the device.
    pub(super) fn new(
        torch: &Torch,
        config: &RunConfig,
        model: &Transformer,
        family: Option<ModelFamily>,
    ) -> Decoder {
        let maker = |layer: &str| Maker::new(torch, config, layer);
        let embedding = maker("embedding").module(&[model.vocabulary, model.d_model]);
        let class = Class::of(family);
        let scale = match class {
            Class::Granite => Some(Scale::Number),
            Class::Gemma => Some(Scale::Buffer(torch.scalar(super::initial_dtype(config)))),
            Class::Llama | Class::Olmo2 | Class::Phi3 | Class::Starcoder2 => None,
        };
        let layer =
            |index: usize| Rc::new(DecoderLayer::new(maker(&format!("blocks.{index}")), model, class, index));
        let layers = (0..model.layers).map(layer).collect();
        let norm = Norm::new(maker("head"), class.norm(), model.d_model);
        let rotated = model.rotated_channels();
        let frequencies = [(); 2].map(|()| torch.empty(&[rotated / 2], DType::F32));
        let has_dropout = class == Class::Starcoder2 && model.dropout.embedding > 0.0;
        let checkpointed = super::checkpointed_layers(config);
        Decoder {
            embedding,
            scale,
            layers,
            norm,
            _frequencies: frequencies,
            class,
            rotated,
            has_dropout,
            checkpointed,
        }
    }
}

impl Body for Decoder {
    fn embedding(&self) -> &Tensor {
        &self.embedding.weight
    }

    fn parameters(&self) -> Vec<Tensor> {
        let layers = self.layers.iter().flat_map(|layer| layer.parameters());
        [self.embedding.weight.clone()].into_iter().chain(layers).chain(self.norm.parameters()).collect()
    }

    fn forward(&self, torch: &Torch, tokens: &Tensor, trains: bool) -> (Tensor, Option<Cache>) {
        let mut embeddings = functions::embedding(torch, self.embedding(), tokens);
        if let Some(Scale::Buffer(scale)) = &self.scale {
            let scale = functions::cast(torch, scale, embeddings.dtype());
            embeddings = functions::mul(torch, &embeddings, &scale);
        }
        embeddings = require_gradients(embeddings, self.checkpointed);
        if let Some(Scale::Number) = &self.scale {
            embeddings = functions::scale(torch, &embeddings);
        }
        let checkpointed = self.checkpointed.filter(|_| trains && torch.grad_enabled());
        let mut cache = (checkpointed.is_none() && uses_cache(torch)).then(Cache::default);
        let positions = Positions::new(torch, tokens.shape());
        if cache.is_none() {
            positions.find_packed_sequences(torch);
        }
        let mut x = embeddings.clone();
        if self.has_dropout && trains {
            x = functions::dropout(torch, &x);
        }
        let dtype = self.class.rotary_dtype(x.dtype());
        let [cos, sin] = rotary_embedding(torch, tokens.shape().last(), self.rotated, dtype);
        let arguments = [positions.tensor().clone(), cos, sin];
        let x = call_layers(torch, &self.layers, x, &arguments, checkpointed, cache.as_mut(), trains);
        (self.norm.forward(torch, &x), cache)
    }
}

impl DecoderLayer {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> DecoderLayer {
        DecoderLayer {
            attention: Attention::new(maker, model, class, index),
            mlp: Mlp::new(maker, model, class),
            class,
            norms: [(); 2].map(|()| Norm::new(maker, class.norm(), model.d_model)),
            has_dropout: class == Class::Phi3 && model.dropout.residual > 0.0,
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let norms = self.norms.iter().flat_map(Norm::parameters);
        self.attention.projections.parameters().chain(self.mlp.parameters()).chain(norms)
    }

    /// The residual stream after a sub-layer with its norm.
    fn after(
        &self,
        torch: &Torch,
        x: &Tensor,
        norm: &Norm,
        trains: bool,
        sub_layer: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let result = match self.class {
            Class::Olmo2 => {
                let output = sub_layer(x);
                norm.forward(torch, &output)
            }
            _ => {
                let normed = norm.forward(torch, x);
                sub_layer(&normed)
            }
        };
        match self.has_dropout && trains {
            true => self.class.add(torch, x, &functions::dropout(torch, &result)),
            false => self.class.add(torch, x, &result),
        }
    }
}

impl Layer for DecoderLayer {
    /// `arguments`: positions, cosines and sines.
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &[Tensor],
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let [_, cos, sin] = arguments else { unreachable!("three arguments") };
        let [of_attention, of_mlp] = &self.norms;
        let x = self.after(torch, x, of_attention, trains, |x| {
            self.attention.forward(torch, x, [cos, sin], cache, trains)
        });
        self.after(torch, &x, of_mlp, trains, |x| self.mlp.forward(torch, x, trains))
    }
}

impl Attention {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> Attention {
        Attention {
            projections: Projections::new(maker, model, class),
            class,
            rotates: model.rotation_of(index).is_some(),
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            has_dropout: model.dropout.attention > 0.0,
            has_output_dropout: class == Class::Starcoder2 && model.dropout.residual > 0.0,
        }
    }

    /// x [B, T, C]
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        [cos, sin]: [&Tensor; 2],
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let &[samples, tokens, _] = x.shape().dims() else { unreachable!("x is [B, T, C]") };
        let heads = Heads {
            batch: samples,
            sequence: tokens,
            queries: self.heads,
            keys: self.kv_heads,
            head: self.head_dim,
            // Phi-3 concatenates the rotated channels and the others.
            is_contiguous: self.class == Class::Phi3,
        };
        let layout = |is_cached| gradient_layout(torch, heads, is_cached, x.dtype());
        let rotated = |is_cached| if self.rotates { Layout::Heads } else { layout(is_cached) };
        let is_cached = cache.is_some();
        let layouts = [rotated(false), rotated(is_cached), layout(is_cached)];
        let Projected { parts: [q, k, v], _stacked } =
            self.projections.forward(torch, x, heads, layouts, trains);
        let [q, k] = match self.rotates {
            false => [q, k],
            true => self.class.rotate(torch, [q, k], [cos, sin]),
        };
        let [k, v] = match cache {
            None => [k, v],
            Some(cache) => cache.update(torch, [k, v]),
        };
        let dtype = torch.autocast().unwrap_or(x.dtype());
        let has_dropout = trains && self.has_dropout;
        let mut y =
            functions::scaled_dot_product_attention(torch, [&q, &k, &v], None, heads, true, has_dropout);
        if heads.copies_flash_output() && functions::is_flash(torch, dtype) {
            // y.transpose(1, 2).contiguous()
            y = functions::copied(torch, &y);
        }
        let channels = heads.queries * heads.head;
        y = functions::heads(torch, &y, &[samples, tokens, channels], Layout::Tokens);
        y = self.projections.out.forward(torch, &y, trains);
        if self.has_output_dropout && trains { functions::dropout(torch, &y) } else { y }
    }
}
