//! The rotary position embeddings of the library's decoders.
//!
//! T sequence, R rotated channels per head.

use crate::functions;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::{ModelFamily, Transformer, TransformersVersion};

/// `LlamaRotaryEmbedding`, or that of Gemma 3 and OLMo 3 with a rotation for each kind of layers.
pub(super) struct Rotations {
    /// For each rotation: `inv_freq`, and its copy if that is a buffer, [R/2].
    frequencies: Vec<Vec<Tensor>>,
    /// The rotation of each layer.
    pub(super) of_layers: Vec<usize>,
    channels: usize,
}

impl Rotations {
    pub(super) fn new(torch: &Torch, model: &Transformer, family: Option<ModelFamily>) -> Rotations {
        let has_window = |layer: &usize| model.window_of(*layer).is_some();
        let windowed = (0..model.layers).filter(has_window).count();
        let is_by_kind = matches!(family, Some(ModelFamily::Gemma3 | ModelFamily::Olmo3));
        let is_mixed = is_by_kind
            && match torch.options.transformers {
                TransformersVersion::V5_24 => windowed > 0 && windowed < model.layers,
                // Also rotations that no layer has.
                TransformersVersion::V4_57 => true,
            };
        let is_windowed_first =
            family == Some(ModelFamily::Olmo3) && torch.options.transformers == TransformersVersion::V4_57;
        let of_layer = |layer| usize::from(is_mixed && has_window(&layer) != is_windowed_first);
        let channels = model.rotated_channels();
        let buffers = match torch.options.transformers {
            TransformersVersion::V5_24 => 2,
            TransformersVersion::V4_57 => 1,
        };
        let frequencies = || (0..buffers).map(|_| torch.empty(&[channels / 2], DType::F32)).collect();
        Rotations {
            frequencies: (0..=usize::from(is_mixed)).map(|_| frequencies()).collect(),
            of_layers: (0..model.layers).map(of_layer).collect(),
            channels,
        }
    }

    pub(super) fn buffers(&self) -> Vec<Tensor> {
        self.frequencies.iter().flatten().cloned().collect()
    }

    /// Cosines and sines of each rotation for positions i64[1, T] or i64[B, T], in the dtype of the hidden states:
    /// [1, 1, T, R] or [B, 1, T, R].
    pub(super) fn tables(&self, torch: &Torch, positions: &Tensor, dtype: DType) -> Vec<[Tensor; 2]> {
        self.frequencies.iter().map(|_| tables(torch, positions.shape(), self.channels, dtype)).collect()
    }
}

fn tables(torch: &Torch, positions: Shape, channels: usize, dtype: DType) -> [Tensor; 2] {
    let &[samples, tokens] = positions.dims() else { unreachable!("positions are a matrix") };
    let angles = |columns: usize| torch.empty(&[samples, 1, tokens, columns], DType::F32);
    let numbers = angles(1);
    let (_frequencies, _positions) = match torch.options.transformers {
        TransformersVersion::V5_24 => {
            let frequencies = angles(channels / 2);
            drop(numbers);
            (frequencies, None)
        }
        TransformersVersion::V4_57 => {
            // inv_freq @ positions, of which both are variables
            let shape = Shape::new(&[samples, channels / 2, tokens]);
            (functions::matmul_output(torch, shape, DType::F32), Some(numbers))
        }
    };
    let _embedding = angles(channels);
    let [cos, sin] = [(); 2].map(|()| {
        let _unscaled = angles(channels);
        angles(channels)
    });
    [&cos, &sin].map(|table| functions::cast(torch, table, dtype))
}
