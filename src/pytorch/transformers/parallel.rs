//! Shared parts of the library's decoders with LayerNorm and rotary positions: GPT-NeoX, Phi and Falcon. Most of their
//! layers have attention beside the feed-forward layer.
//!
//! B batch, T sequence, C channels, H heads, D channels per head, R of them rotated.

use std::rc::Rc;

use super::body::{Arguments, Body, Cache, Layer, Positions, call_layers, require_gradients, uses_cache};
use super::layers::{Linear, Maker, ModuleWeight, activation};
use super::masks::Masks;
use super::norm::{Norm, NormClass};
use super::rotations::Rotations;
use crate::functions::{self, Heads, Layout};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Activation;
use spec::{MlpActivation, RunConfig, Transformer};

/// A layer that a `ParallelDecoder` has.
pub(super) trait ParallelLayer: Layer {
    /// Whether the model's module of rotary positions precedes its last norm.
    const ROTARY_BEFORE_NORM: bool = false;

    /// Whether the model's variable of the embeddings is assigned again after dropout.
    const REASSIGNS_EMBEDDINGS: bool = false;

    /// `maker`: of the layer's parameters.
    fn new(maker: Maker<'_>, model: &Transformer) -> Self;

    fn parameters(&self) -> Vec<Tensor>;
}

/// `GPTNeoXModel`, `PhiModel` or `FalconModel`
pub(super) struct ParallelDecoder<L> {
    /// [V, C]
    embedding: ModuleWeight,
    layers: Vec<Rc<L>>,
    norm: Norm,
    rotations: Rotations,
    masks: Masks,
    has_dropout: bool,
    /// Every n-th layer is checkpointed (`every_n_layers`).
    checkpointed: Option<usize>,
}

impl<L: ParallelLayer> ParallelDecoder<L> {
    /// The model on the device.
    pub(super) fn new(torch: &Torch, config: &RunConfig, model: &Transformer) -> ParallelDecoder<L> {
        let maker = |layer: &str| Maker::new(torch, config, layer);
        let embedding = maker("embedding").module(&[model.vocabulary, model.d_model]);
        let layer = |index: usize| Rc::new(L::new(maker(&format!("blocks.{index}")), model));
        let layers = (0..model.layers).map(layer).collect();
        let norm = || Norm::new(maker("head"), NormClass::Layer, model.d_model);
        let rotations = || Rotations::new(torch, model, super::family(model));
        let (norm, rotations) = if L::ROTARY_BEFORE_NORM {
            let rotations = rotations();
            (norm(), rotations)
        } else {
            (norm(), rotations())
        };
        let masks = Masks::new(config, model, super::family(model));
        let has_dropout = model.dropout.embedding > 0.0;
        let checkpointed = super::checkpointed_layers(config);
        ParallelDecoder { embedding, layers, norm, rotations, masks, has_dropout, checkpointed }
    }
}

impl<L: ParallelLayer + 'static> Body for ParallelDecoder<L> {
    fn embedding(&self) -> &Tensor {
        &self.embedding.weight
    }

    fn parameters(&self) -> Vec<Tensor> {
        let layers = self.layers.iter().flat_map(|layer| layer.parameters());
        let norm = self.norm.parameters();
        [self.embedding.weight.clone()].into_iter().chain(layers).chain(norm).collect()
    }

    fn forward(
        &self,
        torch: &Torch,
        tokens: &Tensor,
        padding: Option<&Tensor>,
        trains: bool,
    ) -> (Tensor, Option<Cache>) {
        let mut embeddings =
            require_gradients(functions::embedding(torch, self.embedding(), tokens), self.checkpointed);
        let checkpointed = self.checkpointed.filter(|_| trains && torch.grad_enabled());
        let mut cache = (checkpointed.is_none() && uses_cache(torch)).then(Cache::default);
        let positions = Positions::new(torch, tokens.shape());
        let masks = self.masks.make(torch, &positions, padding, embeddings.dtype(), cache.is_some());
        let x = match self.has_dropout && trains {
            true => functions::dropout(torch, &embeddings),
            false => embeddings.clone(),
        };
        if L::REASSIGNS_EMBEDDINGS {
            embeddings.clone_from(&x);
        }
        let rotations = self.rotations.tables(torch, tokens.shape().last(), x.dtype());
        let arguments = |layer| Arguments {
            mask: masks.of_layer(layer),
            rotation: Some(rotations[0].clone()),
            positions: Some(positions.tensor().clone()),
        };
        let x = call_layers(torch, &self.layers, x, arguments, checkpointed, cache.as_mut(), trains);
        (self.norm.forward(torch, &x), cache)
    }
}

/// The feed-forward layer: two linear layers, and an activation between them.
pub(super) struct Mlp {
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    pub(super) fn new(maker: Maker<'_>, model: &Transformer) -> Mlp {
        let MlpActivation::Plain(activation) = model.activation else { unreachable!("checked: no gate") };
        let (channels, width) = (model.d_model, model.d_ff);
        Mlp {
            up: maker.linear("mlp.up", channels, width, model.bias),
            down: maker.linear("mlp.out", width, channels, model.bias),
            activation,
        }
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = Tensor> {
        [&self.up, &self.down].into_iter().flat_map(Linear::parameters)
    }

    pub(super) fn forward(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        let x = activation(torch, self.up.forward(torch, x, trains), self.activation);
        self.down.forward(torch, &x, trains)
    }
}

/// `attention_interface(..).reshape(B, T, -1)` of q, k and v that lie in memory by head.
pub(super) fn attend(torch: &Torch, [q, k, v]: [&Tensor; 3], heads: Heads, has_dropout: bool) -> Tensor {
    let y = functions::scaled_dot_product_attention(torch, [q, k, v], None, heads, true, has_dropout);
    // attn_output.transpose(1, 2).contiguous()
    let is_by_head = heads.by_head && functions::is_flash(torch, y.dtype()) && heads.queries > 1;
    let y = if is_by_head { functions::copied(torch, &y) } else { y };
    let &[samples, _, tokens, _] = y.shape().dims() else { unreachable!("y is [B, H, T, D]") };
    functions::heads(torch, &y, &[samples, tokens, heads.queries * heads.head], Layout::Tokens)
}
