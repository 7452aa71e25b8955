//! The library's masks of attention (`masking_utils`).
//!
//! B batch, T sequence.

use super::body::Positions;
use crate::functions;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::{Attention, ModelFamily, RunConfig, Transformer};

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

    /// The masks of all layers for hidden states [B, T, C] of this dtype. `padding`: the attention mask of the batch.
    pub(super) fn make(
        &self,
        torch: &Torch,
        positions: &Positions,
        padding: Option<&Tensor>,
        dtype: DType,
        has_cache: bool,
    ) -> MadeMasks<'_> {
        let make = |&window: &Option<usize>| {
            let padding = padding.map(|padding| torch.tensor(padding.shape(), DType::Bool));
            if padding.is_none() && !has_cache {
                positions.find_packed_sequences(torch);
            }
            let pattern = Pattern { has_window: window.is_some(), padding: padding.as_ref() };
            if self.is_eager {
                return Some(numbers(torch, positions, pattern, dtype));
            }
            if !self.keeps_causal && window.is_none_or(|window| positions.length() < window) {
                // Causal, if no token is padding.
                let padding = padding.as_ref()?;
                for _ in 0..2 {
                    let _count = functions::count(torch, padding);
                    torch.scalar(DType::Bool);
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
struct Pattern<'a> {
    has_window: bool,
    /// bool[B, T]
    padding: Option<&'a Tensor>,
}

/// `sdpa_mask`: bool[B, 1, T, T]. Without padding, all samples are the same memory.
fn bools(torch: &Torch, positions: &Positions, pattern: Pattern<'_>) -> Tensor {
    let (samples, length) = (positions.samples(), positions.length());
    let range = |length: usize| torch.empty(&[length], DType::I64);
    let _samples = range(samples);
    let _head = range(1);
    let _indices = [(); 2].map(|()| {
        let _range = range(length);
        range(length)
    });
    let bools = |dims: [usize; 4]| torch.empty(&dims, DType::Bool);
    let matrix = || bools([1, 1, length, length]);
    let causal = || match pattern.has_window {
        false => matrix(),
        true => {
            // and_masks(kv > q - window, kv <= q)
            let mut result = torch.scalar(DType::Bool);
            for needs_difference in [true, false] {
                let condition = {
                    let _difference = needs_difference.then(|| range(length));
                    matrix()
                };
                let both = matrix();
                drop(condition);
                result = both;
            }
            result
        }
    };
    let shape = mask_shape(samples, length);
    if pattern.padding.is_none() {
        return causal().view(shape);
    }
    // and_masks(causal, padding[sample, kv])
    let mut result = torch.scalar(DType::Bool);
    result = {
        let causal = causal();
        let both = matrix();
        drop((causal, result));
        both
    };
    let _own = {
        // Indices that are expanded to each other's shape are copied.
        let copied = if samples > 1 { 2 } else { 1 };
        let _indices: Vec<Tensor> = (0..copied).map(|_| range(samples * length)).collect();
        bools([samples, 1, 1, length])
    };
    let both = torch.tensor(shape, DType::Bool);
    drop(result);
    both
}

/// `eager_mask`: 0 or the least number of the dtype, [B, 1, T, T].
fn numbers(torch: &Torch, positions: &Positions, pattern: Pattern<'_>, dtype: DType) -> Tensor {
    let _mask = bools(torch, positions, pattern);
    let _numbers = [(); 2].map(|()| torch.scalar(dtype));
    torch.tensor(mask_shape(positions.samples(), positions.length()), dtype)
}

fn mask_shape(samples: usize, length: usize) -> Shape {
    Shape::new(&[samples, 1, length, length])
}
