//! The library's masks of attention (`masking_utils`).
//!
//! B batch, T sequence.

use super::body::Positions;
use crate::functions;
use crate::network::Inputs;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::{Attention, ModelFamily, RunConfig, Transformer, TransformersVersion};

/// The masks that a class makes for its layers.
pub(super) struct Masks {
    /// The windows of the masks, in the order in which they are made. `None`: causal without a window.
    windows: Vec<Option<usize>>,
    /// The mask of each layer.
    of_layers: Vec<usize>,
    /// Whether eager attention adds the masks to scores. Without it, masks are bools.
    is_eager: bool,
    /// Whether masks that only hide later tokens are made, too (Falcon).
    keeps_causal: bool,
}

impl Masks {
    pub(super) fn new(config: &RunConfig, model: &Transformer, family: Option<ModelFamily>) -> Masks {
        let has_windows = (0..model.layers).any(|layer| model.window_of(layer).is_some());
        let windows = match family {
            Some(ModelFamily::Gemma2 | ModelFamily::Gemma3 | ModelFamily::Olmo3) => {
                vec![None, Some(model.window.unwrap_or(model.context))]
            }
            Some(ModelFamily::Qwen2 | ModelFamily::Qwen3) if has_windows => vec![None, model.window],
            _ => vec![model.window],
        };
        let of_layer = |layer| {
            let window = model.window_of(layer).and(model.window);
            windows.iter().position(|&other| other == window).expect("a mask for each kind of layer")
        };
        let of_layers = (0..model.layers).map(of_layer).collect();
        let is_eager = config.strategy.attention == Attention::Materialized;
        Masks { windows, of_layers, is_eager, keeps_causal: family == Some(ModelFamily::Falcon) }
    }

    /// The masks of all layers for hidden states [B, T, C] of this dtype.
    pub(super) fn make(
        &self,
        torch: &Torch,
        positions: &Positions,
        inputs: Inputs<'_>,
        dtype: DType,
        has_cache: bool,
    ) -> MadeMasks<'_> {
        let make = |&window: &Option<usize>| {
            let padding = inputs.third.filter(|_| torch.options.attention_mask);
            let padding = padding.map(|padding| torch.tensor(padding.shape(), DType::Bool));
            let looks_for_sequences = padding.is_none() && !has_cache;
            let sequences = looks_for_sequences.then(|| positions.find_packed_sequences(torch)).flatten();
            let pattern = Pattern {
                has_window: window.is_some(),
                has_sequences: sequences.is_some(),
                has_padding: padding.is_some(),
            };
            if self.is_eager {
                return Some(numbers(torch, positions, pattern, dtype));
            }
            let hides_later_alone =
                sequences.is_none() && window.is_none_or(|window| positions.length() < window);
            if !self.keeps_causal && hides_later_alone {
                // Causal, if no token is padding.
                let is_padding = check_padding(torch, padding.as_ref()?, inputs.hides_tokens);
                if !is_padding {
                    return None;
                }
            }
            Some(bools(torch, positions, pattern))
        };
        MadeMasks { masks: self.windows.iter().map(make).collect(), of_layers: &self.of_layers }
    }
}

/// The variable of the masks in `forward`.
pub(super) struct MadeMasks<'a> {
    masks: Vec<Option<Tensor>>,
    of_layers: &'a [usize],
}

impl MadeMasks<'_> {
    /// `None`: attention itself is causal.
    pub(super) fn of_layer(&self, layer: usize) -> Option<Tensor> {
        self.masks[self.of_layers[layer]].clone()
    }
}

/// The masked keys besides later tokens.
#[derive(Clone, Copy)]
struct Pattern {
    has_window: bool,
    /// Whether those of other sequences are masked.
    has_sequences: bool,
    has_padding: bool,
}

/// Looks whether a token is padding, `padding.all()`; `padding.sum() == padding.numel()` in 5.x, which then also looks at
/// a part.
fn check_padding(torch: &Torch, padding: &Tensor, is_padding: bool) -> bool {
    match torch.options.transformers {
        TransformersVersion::V5_24 => {
            for _ in 0..if is_padding { 2 } else { 1 } {
                let _count = functions::count(torch, padding);
                torch.scalar(DType::Bool);
            }
        }
        TransformersVersion::V4_57 => functions::all(torch, padding),
    }
    is_padding
}

/// `sdpa_mask`: bool[B, 1, T, T]. Without padding and sequences, all samples are the same memory.
fn bools(torch: &Torch, positions: &Positions, pattern: Pattern) -> Tensor {
    let (samples, length) = (positions.samples(), positions.length());
    let range = |length: usize| torch.empty(&[length], DType::I64);
    let _indices = match torch.options.transformers {
        TransformersVersion::V5_24 => {
            let [samples, head] = [range(samples), range(1)];
            let [queries, keys] = [(); 2].map(|()| {
                let _range = range(length);
                range(length)
            });
            [samples, head, queries, keys]
        }
        TransformersVersion::V4_57 => {
            let keys = range(length);
            [range(samples), range(1), positions.tensor().clone(), keys]
        }
    };
    let result = Conditions { torch, samples, length }.of(pattern);
    result.view(mask_shape(samples, length))
}

/// The functions of masks, of all queries and keys at once.
#[derive(Clone, Copy)]
struct Conditions<'a> {
    torch: &'a Torch,
    samples: usize,
    length: usize,
}

impl Conditions<'_> {
    fn of(self, pattern: Pattern) -> Tensor {
        let Pattern { has_window, has_sequences, has_padding } = pattern;
        if has_padding {
            let others = Pattern { has_padding: false, ..pattern };
            return self.both(|| self.of(others), || self.looked_up(DType::Bool), [1, self.samples]);
        }
        let is_remapped = has_sequences && self.torch.options.transformers == TransformersVersion::V5_24;
        if is_remapped {
            let first = || {
                // Positions of queries and keys in their documents.
                let _positions = [(); 2].map(|()| self.looked_up(DType::I64));
                self.causal(has_window, self.samples)
            };
            return self.both(first, || self.same_sequence(), [self.samples; 2]);
        }
        if has_sequences {
            let others = Pattern { has_sequences: false, ..pattern };
            return self.both(|| self.of(others), || self.same_sequence(), [1, self.samples]);
        }
        self.causal(has_window, 1)
    }

    /// kv <= q, with a window `and_masks(kv > q - window, kv <= q)`, for positions of this number of samples.
    fn causal(self, has_window: bool, samples: usize) -> Tensor {
        match has_window {
            true => self.both(|| self.window(samples), || self.matrices(samples), [samples; 2]),
            false => self.matrices(samples),
        }
    }

    /// `and_masks(first, second)`, which are for these numbers of samples.
    fn both(self, first: impl Fn() -> Tensor, second: impl Fn() -> Tensor, samples: [usize; 2]) -> Tensor {
        let ones = match self.torch.options.transformers {
            TransformersVersion::V5_24 => self.torch.scalar(DType::Bool),
            // One for each query, since the function is mapped over queries.
            TransformersVersion::V4_57 => self.torch.empty(&[self.length], DType::Bool),
        };
        let result = {
            let _condition = first();
            self.matrices(samples[0])
        };
        drop(ones);
        let _condition = second();
        let both = self.matrices(samples[1]);
        drop(result);
        both
    }

    /// Bools of all queries and keys, of this number of samples.
    fn matrices(self, samples: usize) -> Tensor {
        self.torch.empty(&[samples, 1, self.length, self.length], DType::Bool)
    }

    /// kv > q - window
    fn window(self, samples: usize) -> Tensor {
        let _difference = self.torch.empty(&[samples, self.length], DType::I64);
        self.matrices(samples)
    }

    /// sequences[sample, q] == sequences[sample, kv]
    fn same_sequence(self) -> Tensor {
        let _both = [(); 2].map(|()| self.looked_up(DType::I64));
        self.matrices(self.samples)
    }

    /// The values of a matrix at samples and tokens, [B, 1, 1, T].
    fn looked_up(self, dtype: DType) -> Tensor {
        // Indices that are expanded to each other's shape are copied.
        let copied = if self.samples > 1 { 2 } else { 1 };
        let index = || self.torch.empty(&[self.samples * self.length], DType::I64);
        let _indices: Vec<Tensor> = (0..copied).map(|_| index()).collect();
        self.torch.empty(&[self.samples, 1, 1, self.length], dtype)
    }
}

/// `eager_mask`: 0 or the least number of the dtype, [B, 1, T, T].
fn numbers(torch: &Torch, positions: &Positions, pattern: Pattern, dtype: DType) -> Tensor {
    let _mask = bools(torch, positions, pattern);
    let _numbers = [(); 2].map(|()| torch.scalar(dtype));
    torch.tensor(mask_shape(positions.samples(), positions.length()), dtype)
}

fn mask_shape(samples: usize, length: usize) -> Shape {
    Shape::new(&[samples, 1, length, length])
}
