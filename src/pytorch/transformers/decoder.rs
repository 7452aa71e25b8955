//! `LlamaModel`, and the models whose code differs from it by few lines: Mistral, Qwen 2, Qwen 3, SmolLM3, Granite and Gemma
//! 1 to 3.
//!
//! B batch, T sequence, C channels, H query heads, G key and value heads, D channels per head.

use std::rc::Rc;

use super::attention::{Attending, Projection};
use super::body::{Arguments, Body, Cache, Layer, Positions, call_layers, require_gradients, uses_cache};
use super::layers::{Linear, Maker, ModuleWeight, activation, gemma_rms_norm, rms_norm};
use super::masks::Masks;
use super::rotations::Rotations;
use crate::functions::{self, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::{Activation, Shape};
use spec::{MlpActivation, ModelFamily, NormPlacement, RunConfig, Transformer};

pub(super) struct Decoder {
    /// [V, C]
    embedding: ModuleWeight,
    /// The factor of embeddings.
    scale: Option<Scale>,
    layers: Vec<Rc<DecoderLayer>>,
    /// [C]
    norm: ModuleWeight,
    rotations: Rotations,
    class: Class,
    masks: Masks,
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
    /// Gemma 1 to 3.
    Gemma,
}

impl Class {
    fn of(family: Option<ModelFamily>) -> Class {
        match family {
            Some(ModelFamily::Granite) => Class::Granite,
            Some(ModelFamily::Gemma | ModelFamily::Gemma2 | ModelFamily::Gemma3) => Class::Gemma,
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
    /// Before the MLP.
    mlp_norm: Tensor,
    /// Norms of the results of attention and MLP (Gemma 2 and 3).
    result_norms: Option<[Tensor; 2]>,
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
    attending: Attending,
    class: Class,
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
        Decoder {
            embedding,
            scale,
            layers,
            norm,
            rotations: Rotations::new(torch, model),
            class,
            masks: Masks::new(config, model, family),
            checkpointed: super::checkpointed_layers(config),
        }
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

    fn forward(
        &self,
        torch: &Torch,
        tokens: &Tensor,
        padding: Option<&Tensor>,
        trains: bool,
    ) -> (Tensor, Option<Cache>) {
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
        let dtype = embeddings.dtype();
        let masks = self.masks.make(torch, &positions, padding, dtype, cache.is_some());
        let rotations = self.rotations.tables(torch, tokens.shape().last(), dtype);
        let arguments = |layer| Arguments {
            mask: masks.of_layer(layer),
            rotation: Some(rotations[self.rotations.of_layers[layer]].clone()),
            positions: Some(positions.tensor().clone()),
        };
        let x = embeddings.clone();
        let x = call_layers(torch, &self.layers, x, arguments, checkpointed, cache.as_mut(), trains);
        (self.class.norm(torch, &x, &self.norm.weight), cache)
    }
}

impl DecoderLayer {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> DecoderLayer {
        let MlpActivation::Gate(activation) = model.activation else { unreachable!("checked: a gate") };
        let (channels, width) = (model.d_model, model.d_ff);
        DecoderLayer {
            attention: Attention::new(maker, model, class, index),
            gate: maker.linear("mlp.gate", channels, width, model.bias),
            up: maker.linear("mlp.up", channels, width, model.bias),
            down: maker.linear("mlp.out", width, channels, model.bias),
            activation: class.activation(activation),
            class,
            input_norm: maker.parameter(&[channels]),
            mlp_norm: maker.parameter(&[channels]),
            result_norms: (model.norm_placement == NormPlacement::Sandwich)
                .then(|| [(); 2].map(|()| maker.parameter(&[channels]))),
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let mlp = [&self.gate, &self.up, &self.down].into_iter().flat_map(Linear::parameters);
        let norms = [&self.input_norm, &self.mlp_norm].into_iter().chain(self.result_norms.iter().flatten());
        self.attention.parameters().chain(mlp).chain(norms.cloned())
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
    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let (mut attended, _weights) = {
            let normed = self.class.norm(torch, x, &self.input_norm);
            self.attention.forward(torch, &normed, arguments, cache, trains)
        };
        if let Some([norm, _]) = &self.result_norms {
            attended = self.class.norm(torch, &attended, norm);
        }
        let x = self.class.add(torch, x, &attended);
        drop(attended);
        let mut output = {
            let normed = self.class.norm(torch, &x, &self.mlp_norm);
            self.mlp(torch, &normed, trains)
        };
        if let Some([_, norm]) = &self.result_norms {
            output = self.class.norm(torch, &output, norm);
        }
        self.class.add(torch, &x, &output)
    }
}

impl Attention {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> Attention {
        let (channels, head_dim) = (model.d_model, model.head_dim);
        let (queries, keys) = (model.heads * head_dim, model.kv_heads * head_dim);
        Attention {
            q: maker.linear("attention.q", channels, queries, model.qkv_bias),
            k: maker.linear("attention.k", channels, keys, model.qkv_bias),
            v: maker.linear("attention.v", channels, keys, model.qkv_bias),
            o: maker.linear("attention.out", queries, channels, model.bias),
            norms: model.qk_norm.then(|| [(); 2].map(|()| maker.parameter(&[head_dim]))),
            rotates: model.rotation_of(index).is_some(),
            attending: Attending::new(maker.config(), model, index),
            class,
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
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> (Tensor, Option<Tensor>) {
        let heads = self.attending.heads(x.shape());
        let mask = arguments.mask.as_ref();
        let layout = |part| {
            let projection = Projection { part, is_rotated: self.rotates && part < 2 };
            self.attending.layout(torch, projection, heads, [cache.is_some(), mask.is_some()], x.dtype())
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
        let norms_by_head = self.norms.as_ref().filter(|_| self.class == Class::Gemma);
        let norm = |part: usize| self.norms.as_ref().filter(|_| norms_by_head.is_none()).map(|norms| &norms[part]);
        let mut q = project(&self.q, heads.query_shape(), norm(0), layout(0));
        let mut k = project(&self.k, heads.key_shape(), norm(1), layout(1));
        let v = project(&self.v, heads.key_shape(), None, layout(2));
        if let Some([q_norm, k_norm]) = norms_by_head {
            q = gemma_rms_norm(torch, &q, q_norm);
            k = gemma_rms_norm(torch, &k, k_norm);
        }
        let [q, k] = match arguments.rotation.as_ref().filter(|_| self.rotates) {
            None => [q, k],
            Some([cos, sin]) => {
                let (q, k) = (q, k);
                [functions::rotate(torch, &q, cos, sin), functions::rotate(torch, &k, cos, sin)]
            }
        };
        let is_cached = cache.is_some();
        let qkv = self.attending.cached(torch, [q, k, v], cache);
        let (y, weights) = self.attending.forward(torch, &qkv, mask, is_cached, trains);
        (self.o.forward(torch, &y, trains), weights)
    }
}
