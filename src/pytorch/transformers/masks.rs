//! The library's masks of attention (`masking_utils`).
//!
//! B batch, T sequence.

use super::body::Positions;
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
    /// Whether eager attention adds the masks to scores. Without it, masks are bools, and a causal one is left out.
    is_eager: bool,
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
        Masks { windows, of_layers, is_eager: config.strategy.attention == Attention::Materialized }
    }

    /// The masks of all layers for hidden states [B, T, C] of this dtype.
    pub(super) fn make(
        &self,
        torch: &Torch,
        positions: &Positions,
        dtype: DType,
        has_cache: bool,
    ) -> MadeMasks<'_> {
        let make = |&window: &Option<usize>| {
            if !has_cache {
                positions.find_packed_sequences(torch);
            }
            let is_causal = window.is_none_or(|window| positions.length() < window);
            match self.is_eager {
                true => Some(numbers(torch, positions, window.is_some(), dtype)),
                false if is_causal => None,
                false => Some(bools(torch, positions, window.is_some())),
            }
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

/// `sdpa_mask`: bool[B, 1, T, T], of which all samples are the same memory.
fn bools(torch: &Torch, positions: &Positions, has_window: bool) -> Tensor {
    let (samples, length) = (positions.samples(), positions.length());
    let range = |length: usize| torch.empty(&[length], DType::I64);
    let _samples = range(samples);
    let _head = range(1);
    let _indices = [(); 2].map(|()| {
        let _range = range(length);
        range(length)
    });
    let matrix = || torch.empty(&[1, 1, length, length], DType::Bool);
    let mask = if has_window {
        // and_masks(kv > q - window, kv <= q)
        let mut result = torch.scalar(DType::Bool);
        for needs_difference in [true, false] {
            let condition = {
                let _difference = needs_difference.then(|| range(length));
                matrix()
            };
            result = {
                let both = matrix();
                drop(condition);
                both
            };
        }
        result
    } else {
        matrix()
    };
    mask.view(mask_shape(samples, length))
}

/// `eager_mask`: 0 or the least number of the dtype, [B, 1, T, T].
fn numbers(torch: &Torch, positions: &Positions, has_window: bool, dtype: DType) -> Tensor {
    let _mask = bools(torch, positions, has_window);
    let _numbers = [(); 2].map(|()| torch.scalar(dtype));
    torch.tensor(mask_shape(positions.samples(), positions.length()), dtype)
}

fn mask_shape(samples: usize, length: usize) -> Shape {
    Shape::new(&[samples, 1, length, length])
}
