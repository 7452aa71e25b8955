//! Shared parts of the library's decoders: the class without its head.

use std::rc::Rc;

use crate::checkpoint::{Checkpointed, checkpoint};
use crate::functions;
use crate::network::Inputs;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use spec::{TorchProgram, TransformersVersion};

/// A decoder without its head.
pub(super) trait Body {
    /// The table of the tokens, [V, C].
    fn embedding(&self) -> &Tensor;

    /// The weights of the modules `nn.Embedding`.
    fn embeddings(&self) -> Vec<Tensor> {
        vec![self.embedding().clone()]
    }

    /// The parameters, in the order of the modules.
    fn parameters(&self) -> Vec<Tensor>;

    /// The parameters of each layer, in the order of the modules.
    fn layers(&self) -> Vec<Vec<Tensor>>;

    /// The buffers, in the order of the modules.
    fn buffers(&self) -> Vec<Tensor>;

    /// The last hidden states [B, T, C], and the cache. Checkpointing turns the cache off where there is a graph.
    fn forward(&self, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Cache>);
}

/// The arguments of a layer's call beside x [B, T, C].
#[derive(Clone, Default)]
pub(super) struct Arguments {
    /// [B, 1, T, T]
    pub(super) mask: Option<Tensor>,
    /// Cosines and sines, [1, 1, T, D] or [B, 1, T, D].
    pub(super) rotation: Option<[Tensor; 2]>,
    /// Those of the other layers, which the call passes, too (Gemma 3 in 4.x).
    pub(super) other_rotation: Option<[Tensor; 2]>,
    /// i64[1, T]
    pub(super) positions: Option<Tensor>,
}

impl Arguments {
    /// Cosines and sines, of layers that rotate.
    pub(super) fn tables(&self) -> &[Tensor; 2] {
        self.rotation.as_ref().expect("the model has tables")
    }
}

/// A layer of a decoder.
pub(super) trait Layer {
    /// Whether the call passes the mask by position: then a reentrant checkpoint saves it as an argument.
    const MASK_BY_POSITION: bool = false;

    fn forward(
        &self,
        torch: &Torch,
        x: &Tensor,
        arguments: &Arguments,
        cache: Option<&mut Cache>,
        trains: bool,
    ) -> Tensor;
}

/// Calls the layers, of which every n-th is checkpointed. A checkpointed call holds its arguments, and has no cache.
/// `arguments`: of each layer.
pub(super) fn call_layers<L: Layer + 'static>(
    torch: &Torch,
    layers: &[Rc<L>],
    mut x: Tensor,
    arguments: impl Fn(usize) -> Arguments,
    checkpointed: Option<usize>,
    mut cache: Option<&mut Cache>,
    trains: bool,
) -> Tensor {
    for (index, layer) in layers.iter().enumerate() {
        let arguments = arguments(index);
        x = match checkpointed {
            Some(every) if index.is_multiple_of(every) => {
                let (layer, held) = (Rc::clone(layer), arguments.clone());
                let function = move |torch: &Torch, x: &Tensor| {
                    with_hooks(torch, index, x, |x| layer.forward(torch, x, &held, None, true))
                };
                let Arguments { mask, rotation, other_rotation, positions } = arguments;
                let mask = mask.filter(|_| !L::MASK_BY_POSITION);
                let rotations = rotation.into_iter().chain(other_rotation).flatten();
                let closure = rotations.chain(mask).chain(positions).collect();
                checkpoint(torch, Checkpointed { closure, ..Checkpointed::of(Rc::new(function)) }, &x)
            }
            _ => with_hooks(torch, index, &x, |x| {
                layer.forward(torch, x, &arguments, cache.as_deref_mut(), trains)
            }),
        };
    }
    x
}

/// Calls a layer, with its hooks if it is wrapped.
fn with_hooks(torch: &Torch, layer: usize, x: &Tensor, forward: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    match torch.fully_shard.get() {
        Some(sharded) => sharded.forward_of_block(torch, layer, x, |x| forward(&x)),
        None => forward(x),
    }
}

/// `enable_input_require_grads`: with checkpoints, embeddings without a gradient are made leaves that require one.
pub(super) fn require_gradients(embeddings: Tensor, checkpointed: Option<usize>) -> Tensor {
    match checkpointed {
        Some(_) if !embeddings.requires_grad() => embeddings.leaf(),
        _ => embeddings,
    }
}

/// Whether layers are checkpointed in this call, of those that may be (`every`: every n-th), and the cache: none with
/// checkpoints, nor with `Trainer` of 5.x, which sets `use_cache=False`.
pub(super) fn checkpoints_and_cache(
    torch: &Torch,
    every: Option<usize>,
    trains: bool,
) -> (Option<usize>, Option<Cache>) {
    let checkpointed = every.filter(|_| trains && torch.grad_enabled());
    let is_off = torch.options.program == TorchProgram::Trainer
        && torch.options.transformers == TransformersVersion::V5_24;
    let uses_cache = checkpointed.is_none() && !is_off;
    (checkpointed, uses_cache.then(Cache::default))
}

/// `DynamicCache`: the keys and values of the layers so far.
#[derive(Default)]
pub(super) struct Cache {
    states: Vec<[Tensor; 2]>,
    /// The windows of layers that have one, i64 scalars, in 5.x.
    windows: Vec<Tensor>,
}

impl Cache {
    /// Appends the keys and values of a layer: `torch.cat([self.keys, key_states], dim=-2)`.
    pub(super) fn update(&mut self, torch: &Torch, states: [Tensor; 2], has_window: bool) -> [Tensor; 2] {
        let version = torch.options.transformers;
        let keeps_window = has_window && version == TransformersVersion::V5_24;
        self.windows.extend(keeps_window.then(|| torch.scalar(DType::I64)));
        let copies = states.each_ref().map(|state| {
            let empty = match version {
                TransformersVersion::V5_24 => state.dtype(),
                // The dtype of keys, which under autocast are fp32 if they are rotated.
                TransformersVersion::V4_57 => states[0].dtype(),
            };
            functions::concatenated(torch, state, empty)
        });
        self.states.push(copies.clone());
        copies
    }
}

/// `position_ids` i64[1, T]: `torch.arange(T)`, in 5.x `torch.arange(T) + 0`; or those of packed documents, i64[B, T].
pub(super) struct Positions {
    tensor: Tensor,
    samples: usize,
    /// Whether a sample has several documents.
    are_packed: bool,
}

impl Positions {
    pub(super) fn new(torch: &Torch, inputs: Inputs<'_>) -> Positions {
        let &[samples, length] = inputs.tokens.shape().dims() else { unreachable!("tokens are a matrix") };
        if let Some(positions) = inputs.third.filter(|_| !torch.options.attention_mask) {
            return Positions { tensor: positions.clone(), samples, are_packed: inputs.hides_tokens };
        }
        let range = torch.empty(&[1, length], DType::I64);
        let tensor = match torch.options.transformers {
            TransformersVersion::V5_24 => torch.like(&range),
            TransformersVersion::V4_57 => range,
        };
        Positions { tensor, samples, are_packed: false }
    }

    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    pub(super) fn length(&self) -> usize {
        self.tensor.shape().last()
    }

    /// `find_packed_sequence_indices`: the number of each token's sequence, i64[B, T]; in 5.x none, if there is one.
    pub(super) fn find_packed_sequences(&self, torch: &Torch) -> Option<Tensor> {
        let length = self.length();
        let matrix = |columns: usize, dtype| torch.empty(&[self.samples, columns], dtype);
        let _first = matrix(1, DType::I64);
        let _difference = {
            let _extended = matrix(length + 1, DType::I64);
            matrix(length, DType::I64)
        };
        let sequence = {
            let _differs = matrix(length, DType::Bool);
            let sum = matrix(length, DType::I64);
            // The kernel sums numbers. CUB's scan sums a single row.
            let _converted = matrix(length, DType::I64);
            if self.samples == 1 {
                functions::scan_scratch(torch, length);
            }
            sum
        };
        match torch.options.transformers {
            TransformersVersion::V5_24 => {
                let _is_first = matrix(1, DType::Bool);
                torch.scalar(DType::Bool);
                self.are_packed.then_some(sequence)
            }
            TransformersVersion::V4_57 => Some(sequence),
        }
    }
}
