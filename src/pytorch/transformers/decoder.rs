//! `LlamaModel`, and the models whose code differs from it by few lines: Mistral, Qwen 2, Qwen 3, SmolLM3, Granite and Gemma.
//!
//! B batch, T sequence, C channels, H query heads, G key and value heads, D channels per head.

use std::rc::Rc;

use super::body::{
    Body, Cache, Layer, Positions, call_layers, gradient_layout, require_gradients, uses_cache,
};
use super::layers::{Linear, Maker, ModuleWeight, activation, gemma_rms_norm, rms_norm, rotary_embedding};
use crate::functions::{self, Heads, Layout};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{Activation, Shape};
use spec::{MlpActivation, ModelFamily, RunConfig, Transformer};

pub(super) struct Decoder {
    /// [V, C]
    embedding: ModuleWeight,
    /// The factor of embeddings.
    scale: Option<Scale>,
    layers: Vec<Rc<DecoderLayer>>,
    /// [C]
    norm: ModuleWeight,
    /// `inv_freq` and its copy, [D/2].
    _frequencies: [Tensor; 2],
    class: Class,
    head_dim: usize,
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

/// The code of the model's class.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Llama,
    /// Results are scaled before they are added to the residual stream.
    Granite,
    Gemma,
}

impl Class {
    fn of(family: Option<ModelFamily>) -> Class {
        match family {
            Some(ModelFamily::Granite) => Class::Granite,
            Some(ModelFamily::Gemma) => Class::Gemma,
            _ => Class::Llama,
        }
    }

    fn norm(self, torch: &Torch, x: &Tensor, weight: &Tensor) -> Tensor {
        match self {
            Class::Llama | Class::Granite => rms_norm(torch, x, weight),
            Class::Gemma => gemma_rms_norm(torch, x, weight),
        }
    }

    /// `residual + result`, or `residual + result * residual_multiplier`.
    fn add(self, torch: &Torch, residual: &Tensor, result: &Tensor) -> Tensor {
        match self {
            Class::Llama | Class::Gemma => functions::add(torch, residual, result),
            Class::Granite => functions::add(torch, residual, &functions::scale(torch, result)),
        }
    }

    /// `gelu_pytorch_tanh`, Gemma's, is one operation, as GELU is.
    fn activation(self, activation: Activation) -> Activation {
        match (self, activation) {
            (Class::Gemma, Activation::GeluTanh) => Activation::Gelu,
            (_, activation) => activation,
        }
    }
}

/// `LlamaDecoderLayer`
struct DecoderLayer {
    attention: Attention,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    class: Class,
    input_norm: Tensor,
    post_attention_norm: Tensor,
}

/// `LlamaAttention`
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    /// `q_norm` and `k_norm`, [D].
    norms: Option<[Tensor; 2]>,
    /// Whether the layer rotates queries and keys.
    rotates: bool,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    has_dropout: bool,
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
            Class::Llama => None,
            Class::Granite => Some(Scale::Number),
            Class::Gemma => Some(Scale::Buffer(torch.scalar(super::initial_dtype(config)))),
        };
        let layer =
            |index: usize| Rc::new(DecoderLayer::new(maker(&format!("blocks.{index}")), model, class, index));
        let layers = (0..model.layers).map(layer).collect();
        let norm = maker("head").module(&[model.d_model]);
        let frequencies = [(); 2].map(|()| torch.empty(&[model.head_dim / 2], DType::F32));
        let checkpointed = super::checkpointed_layers(config);
        let head_dim = model.head_dim;
        Decoder { embedding, scale, layers, norm, _frequencies: frequencies, class, head_dim, checkpointed }
    }
}

impl Body for Decoder {
    fn embedding(&self) -> &Tensor {
        &self.embedding.weight
    }

    fn parameters(&self) -> Vec<Tensor> {
        let layers = self.layers.iter().flat_map(|layer| layer.parameters());
        let [embedding, norm] = [&self.embedding, &self.norm].map(|module| module.weight.clone());
        [embedding].into_iter().chain(layers).chain([norm]).collect()
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
        let [cos, sin] = rotary_embedding(torch, tokens.shape().last(), self.head_dim, embeddings.dtype());
        let arguments = [positions.tensor().clone(), cos, sin];
        let x = embeddings.clone();
        let x = call_layers(torch, &self.layers, x, &arguments, checkpointed, cache.as_mut(), trains);
        (self.class.norm(torch, &x, &self.norm.weight), cache)
    }
}

impl DecoderLayer {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> DecoderLayer {
        let MlpActivation::Gate(activation) = model.activation else { unreachable!("checked: a gate") };
        let (channels, width) = (model.d_model, model.d_ff);
        DecoderLayer {
            attention: Attention::new(maker, model, index),
            gate: maker.linear("mlp.gate", channels, width, model.bias),
            up: maker.linear("mlp.up", channels, width, model.bias),
            down: maker.linear("mlp.out", width, channels, model.bias),
            activation: class.activation(activation),
            class,
            input_norm: maker.parameter(&[channels]),
            post_attention_norm: maker.parameter(&[channels]),
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let mlp = [&self.gate, &self.up, &self.down].into_iter().flat_map(Linear::parameters);
        let norms = [&self.input_norm, &self.post_attention_norm].map(Tensor::clone);
        self.attention.parameters().chain(mlp).chain(norms)
    }

    /// `down_proj(act_fn(gate_proj(x)) * up_proj(x))`
    fn mlp(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        let product = {
            let gate = activation(torch, self.gate.forward(torch, x, trains), self.activation);
            let up = self.up.forward(torch, x, trains);
            functions::mul(torch, &gate, &up)
        };
        self.down.forward(torch, &product, trains)
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
        let x = {
            let attended = {
                let normed = self.class.norm(torch, x, &self.input_norm);
                self.attention.forward(torch, &normed, [cos, sin], cache, trains)
            };
            self.class.add(torch, x, &attended)
        };
        let output = {
            let normed = self.class.norm(torch, &x, &self.post_attention_norm);
            self.mlp(torch, &normed, trains)
        };
        self.class.add(torch, &x, &output)
    }
}

impl Attention {
    fn new(maker: Maker<'_>, model: &Transformer, index: usize) -> Attention {
        let (channels, head_dim) = (model.d_model, model.head_dim);
        let (queries, keys) = (model.heads * head_dim, model.kv_heads * head_dim);
        Attention {
            q: maker.linear("attention.q", channels, queries, model.qkv_bias),
            k: maker.linear("attention.k", channels, keys, model.qkv_bias),
            v: maker.linear("attention.v", channels, keys, model.qkv_bias),
            o: maker.linear("attention.out", queries, channels, model.bias),
            norms: model.qk_norm.then(|| [(); 2].map(|()| maker.parameter(&[head_dim]))),
            rotates: model.rotation_of(index).is_some(),
            heads: model.heads,
            kv_heads: model.kv_heads,
            head_dim,
            has_dropout: model.dropout.attention > 0.0,
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let linear = [&self.q, &self.k, &self.v, &self.o].into_iter().flat_map(Linear::parameters);
        linear.chain(self.norms.iter().flatten().cloned())
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
            by_head: false,
        };
        // linear(x).view(B, T, -1, D).transpose(1, 2)
        let project = |linear: &Linear, shape: Shape, norm: Option<&Tensor>, gradient: Layout| {
            let y = functions::heads(torch, &linear.forward(torch, x, trains), shape.dims(), gradient);
            match norm {
                None => y,
                Some(norm) => {
                    let normed = rms_norm(torch, &y, norm);
                    drop(y);
                    functions::heads(torch, &normed, shape.dims(), Layout::Tokens)
                }
            }
        };
        let norm = |part: usize| self.norms.as_ref().map(|norms| &norms[part]);
        let layout = |is_cached| gradient_layout(torch, heads, is_cached, x.dtype());
        let rotated = |is_cached| if self.rotates { Layout::Heads } else { layout(is_cached) };
        let is_cached = cache.is_some();
        let q = project(&self.q, heads.query_shape(), norm(0), rotated(false));
        let k = project(&self.k, heads.key_shape(), norm(1), rotated(is_cached));
        let v = project(&self.v, heads.key_shape(), None, layout(is_cached));
        let [q, k] = match self.rotates {
            false => [q, k],
            true => {
                let (q, k) = (q, k);
                [functions::rotate(torch, &q, cos, sin), functions::rotate(torch, &k, cos, sin)]
            }
        };
        let [k, v] = match cache {
            None => [k, v],
            Some(cache) => cache.update(torch, [k, v]),
        };
        let has_dropout = trains && self.has_dropout;
        let y = functions::scaled_dot_product_attention(torch, [&q, &k, &v], None, heads, true, has_dropout);
        let channels = heads.queries * heads.head;
        let y = functions::heads(torch, &y, &[samples, tokens, channels], Layout::Tokens);
        self.o.forward(torch, &y, trains)
    }
}
