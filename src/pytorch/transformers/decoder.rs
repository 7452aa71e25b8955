//! `LlamaModel`, and the models whose code differs from it by few lines: Mistral, Qwen 2, Qwen 3, SmolLM3, Granite,
//! Gemma 1 to 3, OLMo 2 and 3, Phi-3 and StarCoder2.
//!
//! B batch, T sequence, C channels, H query heads, G key and value heads, D channels per head, R of them rotated.

use std::rc::Rc;

use super::attention::{Attending, Projection};
use super::body::{
    Arguments, Body, Cache, Layer, Positions, call_layers, checkpoints_and_cache, require_gradients,
};
use super::class::Class;
use super::layers::{Maker, ModuleWeight};
use super::masks::Masks;
use super::mlp::Mlp;
use super::norm::{Norm, NormPlace};
use super::projections::{Projected, Projections};
use super::rotations::Rotations;
use crate::functions::{self, Layout};
use crate::network::Inputs;
use crate::tensor::Tensor;
use crate::torch::Torch;
use spec::{ModelFamily, NormPlacement, RunConfig, TorchKernels, Transformer, TransformersVersion};

pub(super) struct Decoder {
    /// [V, C]
    embedding: ModuleWeight,
    /// The factor of embeddings.
    scale: Option<Scale>,
    layers: Vec<Rc<DecoderLayer>>,
    norm: Norm,
    rotations: Rotations,
    class: Class,
    masks: Masks,
    /// Whether embeddings have dropout (StarCoder2).
    has_dropout: bool,
    /// Whether training has no cache (Gemma 2 and 3 in 4.x).
    trains_uncached: bool,
    /// Whether layers are called with all rotations (Gemma 3 in 4.x).
    passes_rotations: bool,
    /// Every n-th layer is checkpointed (`every_n_layers`).
    checkpointed: Option<usize>,
}

/// How embeddings are scaled.
enum Scale {
    /// By a number (Granite).
    Number,
    /// By a number after the masks and rotations are made (Gemma 1 and 2 in 4.x).
    LateNumber,
    /// By a buffer of the embedding (Gemma, in 4.x only Gemma 3).
    Buffer(Tensor),
}

/// `LlamaDecoderLayer`
struct DecoderLayer {
    attention: Attention,
    mlp: Mlp,
    class: Class,
    /// The norm of attention, and that of the feed-forward layer.
    norms: [Norm; 2],
    /// Norms of their results beside those of their inputs (Gemma 2 and 3).
    result_norms: [Option<Norm>; 2],
    /// Whether results have dropout before they are added to the residual stream (Phi-3).
    has_dropout: bool,
}

/// `LlamaAttention`
struct Attention {
    projections: Projections,
    class: Class,
    /// Whether the layer rotates queries and keys.
    rotates: bool,
    attending: Attending,
    /// With liger-kernel, whether queries and keys to be rotated do not lie in memory as [B, T, heads, D].
    copies_rotated: Option<[bool; 2]>,
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
        let is_v4 = torch.options.transformers == TransformersVersion::V4_57;
        let scale = match class {
            Class::Granite => Some(Scale::Number),
            Class::Gemma if is_v4 && family != Some(ModelFamily::Gemma3) => Some(Scale::LateNumber),
            Class::Gemma => Some(Scale::Buffer(torch.scalar(super::initial_dtype(config)))),
            Class::Llama | Class::Olmo2 | Class::Phi3 | Class::Starcoder2 => None,
        };
        let layer =
            |index: usize| Rc::new(DecoderLayer::new(maker(&format!("blocks.{index}")), model, class, index));
        let layers = (0..model.layers).map(layer).collect();
        let norm = Norm::new(maker("head"), class.norm(maker("head"), NormPlace::Head), model.d_model);
        Decoder {
            embedding,
            scale,
            layers,
            norm,
            rotations: Rotations::new(torch, model, family),
            class,
            masks: Masks::new(config, model, family),
            has_dropout: class == Class::Starcoder2 && model.dropout.embedding > 0.0,
            passes_rotations: is_v4 && family == Some(ModelFamily::Gemma3),
            trains_uncached: is_v4 && matches!(family, Some(ModelFamily::Gemma2 | ModelFamily::Gemma3)),
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
        [self.embedding.weight.clone()].into_iter().chain(layers).chain(self.norm.parameters()).collect()
    }

    fn layers(&self) -> Vec<Vec<Tensor>> {
        self.layers.iter().map(|layer| layer.parameters().collect()).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        let scale = match &self.scale {
            Some(Scale::Buffer(scale)) => Some(scale.clone()),
            _ => None,
        };
        scale.into_iter().chain(self.rotations.buffers()).collect()
    }

    fn forward(&self, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Cache>) {
        let tokens = inputs.tokens;
        let mut embeddings = functions::embedding(torch, self.embedding(), tokens);
        if let Some(Scale::Buffer(scale)) = &self.scale {
            let scale = functions::cast(torch, scale, embeddings.dtype());
            embeddings = functions::mul(torch, &embeddings, &scale);
        }
        embeddings = require_gradients(embeddings, self.checkpointed);
        if let Some(Scale::Number) = &self.scale {
            embeddings = functions::scale(torch, &embeddings);
        }
        let (checkpointed, cache) = checkpoints_and_cache(torch, self.checkpointed, trains);
        let mut cache = cache.filter(|_| !(self.trains_uncached && trains));
        let positions = Positions::new(torch, inputs);
        let masks = self.masks.make(torch, &positions, inputs, embeddings.dtype(), cache.is_some());
        let mut x = functions::dropout_if(torch, embeddings.clone(), self.has_dropout && trains);
        let dtype = self.class.rotary_dtype(x.dtype());
        let rotations = self.rotations.tables(torch, positions.tensor(), dtype);
        if let Some(Scale::LateNumber) = &self.scale {
            x = functions::scale(torch, &x);
        }
        let arguments = |layer| {
            let rotation = self.rotations.of_layers[layer];
            let other = (0..rotations.len()).find(|&other| self.passes_rotations && other != rotation);
            Arguments {
                mask: masks.of_layer(layer),
                rotation: Some(rotations[rotation].clone()),
                other_rotation: other.map(|other| rotations[other].clone()),
                positions: Some(positions.tensor().clone()),
            }
        };
        let x = call_layers(torch, &self.layers, x, arguments, checkpointed, cache.as_mut(), trains);
        (self.norm.forward(torch, &x), cache)
    }
}

impl DecoderLayer {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> DecoderLayer {
        let norm = || Norm::new(maker, class.norm(maker, NormPlace::Residual), model.d_model);
        let is_sandwiched = model.norm_placement == NormPlacement::Sandwich;
        DecoderLayer {
            attention: Attention::new(maker, model, class, index),
            mlp: Mlp::new(maker, model, class),
            class,
            norms: [norm(), norm()],
            result_norms: [(); 2].map(|()| is_sandwiched.then(norm)),
            has_dropout: class == Class::Phi3 && model.dropout.residual > 0.0,
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let norms = self
            .norms
            .iter()
            .zip(&self.result_norms)
            .flat_map(|(norm, result)| [Some(norm), result.as_ref()]);
        let norms = norms.flatten().flat_map(Norm::parameters);
        self.attention.projections.parameters().chain(self.mlp.parameters()).chain(norms)
    }

    /// The residual stream after the first or second sub-layer with its norms.
    fn after(
        &self,
        torch: &Torch,
        number: usize,
        x: &Tensor,
        trains: bool,
        sub_layer: impl FnOnce(&Tensor) -> Tensor,
    ) -> Tensor {
        let norm = &self.norms[number];
        let mut result = match self.class {
            Class::Olmo2 => {
                let output = sub_layer(x);
                norm.forward(torch, &output)
            }
            _ => {
                let normed = norm.forward(torch, x);
                sub_layer(&normed)
            }
        };
        if let Some(norm) = &self.result_norms[number] {
            result = norm.forward(torch, &result);
        }
        // The variable `result` lives until the sum replaces it.
        let dropped = functions::dropout_if(torch, result.clone(), self.has_dropout && trains);
        self.class.add(torch, x, &dropped)
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
        let mut _weights = None;
        let x = self.after(torch, 0, x, trains, |x| {
            let output;
            (output, _weights) = self.attention.forward(torch, x, arguments, cache, trains);
            output
        });
        self.after(torch, 1, &x, trains, |x| self.mlp.forward(torch, x, trains))
    }
}

impl Attention {
    fn new(maker: Maker<'_>, model: &Transformer, class: Class, index: usize) -> Attention {
        let uses_liger = maker.options().kernels == TorchKernels::Liger;
        let copies_rotated = uses_liger.then_some(match class {
            // Parts of stacked rows.
            Class::Phi3 => [true; 2],
            // `LigerRMSNorm` is contiguous.
            Class::Gemma if model.qk_norm => [model.heads > 1, model.kv_heads > 1],
            _ => [false; 2],
        });
        // Phi-3 concatenates the rotated channels and the others.
        let by_head = class == Class::Phi3 && !uses_liger;
        Attention {
            projections: Projections::new(maker, model, class),
            class,
            rotates: model.rotation_of(index).is_some(),
            attending: Attending::new(maker.config(), model, index).with_layout_by_head(by_head),
            copies_rotated,
            has_output_dropout: class == Class::Starcoder2 && model.dropout.residual > 0.0,
        }
    }

    /// The output for x [B, T, C], and the weights of values that eager attention returns.
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
        let is_cached = cache.is_some();
        let layout = |part: usize, is_rotated: bool| {
            let projection = Projection { part, is_rotated };
            self.attending.layout(torch, projection, heads, [is_cached, mask.is_some()], x.dtype())
        };
        let layouts = [0, 1, 2].map(|part| match self.copies_rotated {
            Some([true, _] | [_, true]) if part < 2 && self.class == Class::Gemma => Layout::Heads,
            Some(_) if self.rotates && part < 2 => Layout::Tokens,
            _ => layout(part, self.rotates && part < 2),
        });
        let Projected { parts: [q, k, v], _stacked } =
            self.projections.forward(torch, x, heads, layouts, trains);
        let [q, k] = match (self.rotates, self.copies_rotated) {
            (false, _) => [q, k],
            (true, None) => self.class.rotate(torch, [q, k], arguments.tables()),
            (true, Some(copies)) => {
                let gradients = [0, 1].map(|part| layout(part, false));
                functions::liger_rotate(torch, [q, k], arguments.tables(), copies, gradients)
            }
        };
        let qkv = self.attending.cached(torch, [q, k, v], cache);
        let (mut y, weights) = self.attending.forward(torch, &qkv, mask, is_cached, trains);
        y = self.projections.out.forward(torch, &y, trains);
        (functions::dropout_if(torch, y, self.has_output_dropout && trains), weights)
    }
}
