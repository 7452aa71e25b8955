//! Shared parts of the library's decoders with LayerNorm and rotary positions: GPT-NeoX, Phi and Falcon. Most of their
//! layers have attention beside the feed-forward layer.
//!
//! B batch, T sequence, C channels, H heads, D channels per head, R of them rotated.

use std::rc::Rc;

use super::body::{
    Arguments, Body, Cache, Layer, Positions, call_layers, checkpoints_and_cache, require_gradients,
};
use super::layers::{Maker, ModuleWeight};
use super::masks::Masks;
use super::norm::{Norm, NormClass};
use super::rotations::Rotations;
use crate::functions;
use crate::network::Inputs;
use crate::tensor::Tensor;
use crate::torch::Torch;
use spec::{RunConfig, Transformer};

/// A layer that a `ParallelDecoder` has.
pub(super) trait ParallelLayer: Layer {
    /// Whether the model's module of rotary positions precedes its last norm.
    const ROTARY_BEFORE_NORM: bool = false;

    /// Whether the model's variable of the embeddings is assigned again after dropout.
    const REASSIGNS_EMBEDDINGS: bool = false;

    /// `maker`: of the layer's parameters. `index`: the layer's number.
    fn new(maker: Maker<'_>, model: &Transformer, index: usize) -> Self;

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
        let layer = |index: usize| Rc::new(L::new(maker(&format!("blocks.{index}")), model, index));
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

    fn layers(&self) -> Vec<Vec<Tensor>> {
        self.layers.iter().map(|layer| layer.parameters()).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.rotations.buffers()
    }

    fn forward(&self, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Cache>) {
        let tokens = inputs.tokens;
        let mut embeddings =
            require_gradients(functions::embedding(torch, self.embedding(), tokens), self.checkpointed);
        let (checkpointed, mut cache) = checkpoints_and_cache(torch, self.checkpointed, trains);
        let positions = Positions::new(torch, inputs);
        let masks = self.masks.make(torch, &positions, inputs, embeddings.dtype(), cache.is_some());
        let x = functions::dropout_if(torch, embeddings.clone(), self.has_dropout && trains);
        if L::REASSIGNS_EMBEDDINGS {
            embeddings.clone_from(&x);
        }
        let rotations = self.rotations.tables(torch, positions.tensor(), x.dtype());
        let arguments = |layer| Arguments {
            mask: masks.of_layer(layer),
            rotation: Some(rotations[0].clone()),
            positions: Some(positions.tensor().clone()),
            ..Arguments::default()
        };
        let x = call_layers(torch, &self.layers, x, arguments, checkpointed, cache.as_mut(), trains);
        (self.norm.forward(torch, &x), cache)
    }
}
