//! `GPT2Model`. Its linear layers are `Conv1D`, which bitsandbytes replaces as it does `nn.Linear`. Its GELU is written out.
//!
//! B batch, T sequence, C channels, H heads, D channels per head.

use std::rc::Rc;

use super::attention::{Attending, Projection};
use super::body::{
    Arguments, Body, Cache, Layer, Positions, call_layers, checkpoints_and_cache, require_gradients,
};
use super::layers::{Linear, Maker, ModuleWeight};
use super::masks::Masks;
use super::mlp::Mlp;
use super::norm::{Norm, NormClass};
use crate::functions::{self, Layout};
use crate::network::Inputs;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use spec::{ModelFamily, RunConfig, Transformer, TransformersVersion};

pub(super) struct Gpt2 {
    /// `wte` [V, C] and `wpe` [T, C].
    tokens: ModuleWeight,
    positions: ModuleWeight,
    blocks: Vec<Rc<Block>>,
    norm: Norm,
    masks: Masks,
    has_dropout: bool,
    /// Every n-th block is checkpointed (`every_n_layers`).
    checkpointed: Option<usize>,
}

/// `GPT2Block`
struct Block {
    first_norm: Norm,
    qkv: Linear,
    attention_out: Linear,
    /// `bias`, bool[T, T], and `masked_bias`: masks of attention, in 4.x.
    mask_buffers: Option<[Tensor; 2]>,
    second_norm: Norm,
    mlp: Mlp,
    attending: Attending,
    has_residual_dropout: bool,
}

impl Gpt2 {
    /// The model on the device.
    pub(super) fn new(torch: &Torch, config: &RunConfig, model: &Transformer) -> Gpt2 {
        let maker = |layer: &str| Maker::new(torch, config, layer);
        let embedding = maker("embedding");
        let tokens = embedding.module(&[model.vocabulary, model.d_model]);
        let positions = embedding.module(&[model.context, model.d_model]);
        let block =
            |index: usize| Rc::new(Block::new(torch, maker(&format!("blocks.{index}")), model, index));
        let blocks = (0..model.layers).map(block).collect();
        let norm = Norm::new(maker("head"), NormClass::Layer, model.d_model);
        let has_dropout = model.dropout.embedding > 0.0;
        let checkpointed = super::checkpointed_layers(config);
        let masks = Masks::new(config, model, Some(ModelFamily::Gpt2));
        Gpt2 { tokens, positions, blocks, norm, masks, has_dropout, checkpointed }
    }
}

impl Body for Gpt2 {
    fn embedding(&self) -> &Tensor {
        &self.tokens.weight
    }

    fn embeddings(&self) -> Vec<Tensor> {
        vec![self.tokens.weight.clone(), self.positions.weight.clone()]
    }

    fn parameters(&self) -> Vec<Tensor> {
        let blocks = self.blocks.iter().flat_map(|block| block.parameters());
        self.embeddings().into_iter().chain(blocks).chain(self.norm.parameters()).collect()
    }

    fn layers(&self) -> Vec<Vec<Tensor>> {
        self.blocks.iter().map(|block| block.parameters().collect()).collect()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.blocks.iter().flat_map(|block| block.mask_buffers.iter().flatten()).cloned().collect()
    }

    fn forward(&self, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Cache>) {
        let tokens = inputs.tokens;
        let (checkpointed, mut cache) = checkpoints_and_cache(torch, self.checkpointed, trains);
        let embeddings =
            require_gradients(functions::embedding(torch, &self.tokens.weight, tokens), self.checkpointed);
        let positions = Positions::new(torch, inputs);
        let position_embeddings = functions::embedding(torch, &self.positions.weight, positions.tensor());
        let mut x = functions::add(torch, &embeddings, &position_embeddings);
        let masks = self.masks.make(torch, &positions, inputs, embeddings.dtype(), cache.is_some());
        x = functions::dropout_if(torch, x, self.has_dropout && trains);
        let arguments = |layer| Arguments {
            mask: masks.of_layer(layer),
            positions: Some(positions.tensor().clone()),
            ..Arguments::default()
        };
        x = call_layers(torch, &self.blocks, x, arguments, checkpointed, cache.as_mut(), trains);
        x = self.norm.forward(torch, &x);
        (x, cache)
    }
}

impl Layer for Block {
    const MASK_BY_POSITION: bool = true;

    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor {
        let normed = self.first_norm.forward(torch, x);
        // The variable lives until the block returns.
        let (attended, _weights) = self.attention(torch, &normed, arguments.mask.as_ref(), cache, trains);
        let x = functions::add(torch, &attended, x);
        drop(normed);
        let normed = self.second_norm.forward(torch, &x);
        let output = self.mlp.forward(torch, &normed, trains);
        functions::add(torch, &x, &output)
    }
}

impl Block {
    fn new(torch: &Torch, maker: Maker<'_>, model: &Transformer, index: usize) -> Block {
        let channels = model.d_model;
        let buffers = || match torch.options.transformers {
            TransformersVersion::V5_24 => None,
            TransformersVersion::V4_57 => Some([
                torch.empty(&[model.context, model.context], DType::Bool),
                torch.scalar(super::initial_dtype(maker.config())),
            ]),
        };
        let has_residual_dropout = model.dropout.residual > 0.0;
        Block {
            first_norm: Norm::new(maker, NormClass::Layer, channels),
            qkv: maker.linear("attention.qkv", channels, 3 * channels, true),
            attention_out: maker.linear("attention.out", channels, channels, true),
            mask_buffers: buffers(),
            second_norm: Norm::new(maker, NormClass::Layer, channels),
            mlp: Mlp::plain(maker, model, has_residual_dropout),
            attending: Attending::new(maker.config(), model, index).of_gpt2(torch.options.transformers),
            has_residual_dropout,
        }
    }

    fn parameters(&self) -> impl Iterator<Item = Tensor> {
        let attention = [&self.qkv, &self.attention_out].into_iter().flat_map(Linear::parameters);
        let norms = [&self.first_norm, &self.second_norm].map(Norm::parameters);
        let [first_norm, second_norm] = norms;
        first_norm.chain(attention).chain(second_norm).chain(self.mlp.parameters())
    }

    fn attention(
        &self,
        torch: &Torch,
        x: &Tensor,
        mask: Option<&Tensor>,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> (Tensor, Option<Tensor>) {
        let heads = self.attending.heads(x.shape());
        let qkv = {
            let qkv = self.qkv.forward(torch, x, trains);
            let parts = functions::split(torch, &qkv, 3);
            let is_cached_masked = [cache.is_some(), mask.is_some()];
            let [k, v, q] = [1, 2, 0].map(|part| {
                let projection = Projection { part, is_rotated: false };
                let layout =
                    match self.attending.layout(torch, projection, heads, is_cached_masked, qkv.dtype()) {
                        // A view that `cat`, the gradient of `split`, takes as it is.
                        Layout::Channels => Layout::Tokens,
                        layout => layout,
                    };
                functions::heads(torch, &parts[part], heads.query_shape().dims(), layout)
            });
            [q, k, v]
        };
        let is_cached = cache.is_some();
        let qkv = self.attending.cached(torch, qkv, cache);
        let (mut y, weights) = self.attending.forward(torch, &qkv, mask, is_cached, trains);
        y = self.attention_out.forward(torch, &y, trains);
        (functions::dropout_if(torch, y, self.has_residual_dropout && trains), weights)
    }
}
