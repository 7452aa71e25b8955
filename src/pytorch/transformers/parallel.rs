//! What the library's decoders with LayerNorm and rotary positions share: GPT-NeoX, Phi and Falcon, most of whose layers
//! have attention beside the feed-forward layer.
//!
//! B batch, T sequence, C channels, H heads, D channels per head, R of them rotated.

use std::rc::Rc;

use super::body::{Body, Cache, Layer, Positions, call_layers, require_gradients, uses_cache};
use super::layers::{Linear, Maker, ModuleWeight, Norm, activation, rotary_embedding};
use crate::functions::{self, Heads, Layout};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{Activation, Shape};
use spec::{MlpActivation, RunConfig, Transformer};

/// A layer that a `ParallelDecoder` has.
pub(super) trait ParallelLayer: Layer {
    /// Whether layers get a mask, a tensor even where it only hides later positions.
    const HAS_MASK: bool = false;

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
    /// `inv_freq` and its copy, [R/2].
    _frequencies: [Tensor; 2],
    rotated: usize,
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
        let rotated = model.rotated_channels();
        let norm = || Norm::new(maker("head"), model.d_model);
        let frequencies = || [(); 2].map(|()| torch.empty(&[rotated / 2], DType::F32));
        let (norm, frequencies) = if L::ROTARY_BEFORE_NORM {
            let frequencies = frequencies();
            (norm(), frequencies)
        } else {
            (norm(), frequencies())
        };
        let has_dropout = model.dropout.embedding > 0.0;
        let checkpointed = super::checkpointed_layers(config);
        ParallelDecoder {
            embedding,
            layers,
            norm,
            _frequencies: frequencies,
            rotated,
            has_dropout,
            checkpointed,
        }
    }
}

impl<L: ParallelLayer + 'static> Body for ParallelDecoder<L> {
    fn embedding(&self) -> &Tensor {
        &self.embedding.weight
    }

    fn parameters(&self) -> Vec<Tensor> {
        let layers = self.layers.iter().flat_map(|layer| layer.parameters());
        let norm = self.norm.parameters().map(Tensor::clone);
        [self.embedding.weight.clone()].into_iter().chain(layers).chain(norm).collect()
    }

    fn forward(&self, torch: &Torch, tokens: &Tensor, trains: bool) -> (Tensor, Option<Cache>) {
        let mut embeddings =
            require_gradients(functions::embedding(torch, self.embedding(), tokens), self.checkpointed);
        let checkpointed = self.checkpointed.filter(|_| trains && torch.grad_enabled());
        let mut cache = (checkpointed.is_none() && uses_cache(torch)).then(Cache::default);
        let positions = Positions::new(torch, tokens.shape());
        if cache.is_none() {
            positions.find_packed_sequences(torch);
        }
        let mask = L::HAS_MASK.then(|| causal_mask(torch, tokens.shape()));
        let x = match self.has_dropout && trains {
            true => functions::dropout(torch, &embeddings),
            false => embeddings.clone(),
        };
        if L::REASSIGNS_EMBEDDINGS {
            embeddings.clone_from(&x);
        }
        let [cos, sin] = rotary_embedding(torch, tokens.shape().last(), self.rotated, x.dtype());
        let arguments: Vec<Tensor> = [positions.tensor().clone(), cos, sin].into_iter().chain(mask).collect();
        let x = call_layers(torch, &self.layers, x, &arguments, checkpointed, cache.as_mut(), trains);
        (self.norm.forward(torch, &x), cache)
    }
}

/// `sdpa_mask` of tokens [B, T]: [T, T], expanded to [B, 1, T, T].
fn causal_mask(torch: &Torch, tokens: Shape) -> Tensor {
    let &[samples, length] = tokens.dims() else { unreachable!("tokens are a matrix") };
    let range = |count: usize| torch.empty(&[count], DType::I64);
    let _samples_and_heads = [range(samples), range(1)];
    let _rows_and_columns = [(); 2].map(|()| {
        let _unshifted = range(length);
        range(length)
    });
    torch.empty(&[length, length], DType::Bool)
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
