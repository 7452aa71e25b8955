//! `[model.sequential]`: layers in a list, each on the output of the one before.

mod codec;
mod layer;
mod loss;
mod modules;
mod sequence;
mod shapes;

use std::path::{Path, PathBuf};

pub use layer::{
    ActivationKeys, ActivationLayer, BatchNormLayer, ConvLayer, GroupNormLayer, Layer, LayerActivation,
    LinearLayer, NormLayer, PoolLayer, ResidualLayer, Statistics,
};
pub use loss::{CrossEntropyLoss, OutputLoss};
pub use modules::Module;
pub use sequence::{AttentionLayer, BlockNorm, Branch, EmbeddingLayer, TransformerBlock};

use super::{Architecture, Model};
use crate::reader::declare::{Optional, key_table};
use crate::reader::error::Problem;
use crate::reader::list::List;
use crate::reader::parsers::{DIMENSION, UsizeRange};
use crate::reader::paths::file_path;
use crate::reader::tree::Table;
use data::{KeyedCount, Part, PartRole, Sample};
use ops::{Shape, TensorType};

/// The key that decides the number of layers and classes.
const LAYERS: &str = "model.sequential.layers";

const SHAPE: List<UsizeRange> =
    List { of: "sizes", example: "[784]", may_be_empty: false, may_repeat: true, element: DIMENSION };

key_table! {
    /// Layers in a list (PyTorch: `nn.Sequential`). Shapes follow from that of the input.
    pub struct Sequential {
        /// Shape of the input of one sample: one to three sizes.
        pub input: Vec<usize> = SHAPE;
        /// The layers. Each is a word or a table with one key.
        pub layers: Vec<Layer> = codec::LAYERS;
        /// Loss of the output.
        pub loss: OutputLoss = loss::LossCodec, default OutputLoss::default();
        /// Safetensors file with the initial parameters; a relative path starts at the folder of the file that writes
        /// it.
        pub weights: Option<PathBuf> = Optional(file_path("final.safetensors")), default None;
    }
}

impl Sequential {
    /// The shape of the input of one sample. More than three sizes are an error of `check`.
    pub fn input_shape(&self) -> Shape {
        Shape::new(&self.input[..self.input.len().min(3)])
    }
}

impl Sequential {
    /// The input of a sample: f32, or ids i32.
    pub fn input_part(&self) -> Part {
        let dims = self.input_shape();
        let (ty, below) = match self.ids() {
            Some(count) => (TensorType::i32(dims.dims()), Some(KeyedCount { key: LAYERS, count })),
            None => (TensorType::f32(dims.dims()), None),
        };
        Part { role: PartRole::Input, name: "input", ty, below }
    }

    /// The targets of a sample: class indices i32, or f32 of the output's shape. A sum has none.
    pub fn targets_part(&self) -> Option<Part> {
        let output = self.output();
        let (leading, classes) = output.dims().split_at(output.dims().len() - 1);
        let (ty, below) = match self.loss {
            OutputLoss::CrossEntropy(_) => {
                (TensorType::i32(leading), Some(KeyedCount { key: LAYERS, count: classes[0] }))
            }
            OutputLoss::SquaredError | OutputLoss::BinaryCrossEntropy => {
                (TensorType::f32(output.dims()), None)
            }
            OutputLoss::Sum => return None,
        };
        Some(Part { role: PartRole::Target, name: "targets", ty, below })
    }

    /// Changes each layer, those within others included.
    pub fn for_each_layer(&mut self, change: &mut impl FnMut(&mut Layer)) {
        layer::for_each(&mut self.layers, change);
    }

    /// Whether it has layers of images: convolutions, pools, norms of channels.
    pub fn has_images(&self) -> bool {
        layer::any(&self.layers, Layer::is_of_images)
    }

    /// Whether it has layers that depend on the length of a sequence.
    pub fn has_sequences(&self) -> bool {
        layer::any(&self.layers, Layer::is_of_sequences)
    }

    /// The number of ids, if the input is ids.
    pub fn ids(&self) -> Option<usize> {
        layer::first(&self.layers).and_then(|layer| match layer {
            Layer::Embedding(EmbeddingLayer { count, .. }) => Some(*count),
            _ => None,
        })
    }

    /// Whether it has batch norm.
    pub fn has_batch_norm(&self) -> bool {
        layer::any(&self.layers, |layer| matches!(layer, Layer::BatchNorm(..)))
    }

    /// Whether an activation overwrites its input in PyTorch.
    pub fn has_activation_in_place(&self) -> bool {
        layer::any(&self.layers, |layer| {
            matches!(layer, Layer::Activation(ActivationLayer { inplace: true, .. }))
        })
    }

    /// Whether training drops elements.
    pub fn has_dropout(&self) -> bool {
        layer::any(&self.layers, |layer| layer.dropout() > 0.0)
    }
}

impl Architecture for Sequential {
    fn description(&self) -> String {
        let modules = self.modules().len();
        let sizes: Vec<String> = self.input.iter().map(usize::to_string).collect();
        let output: Vec<String> = self.output().dims().iter().map(usize::to_string).collect();
        let layers = if modules == 1 { "layer" } else { "layers" };
        format!("sequential {modules} {layers} {} to {}", sizes.join("x"), output.join("x"))
    }

    fn sample(&self, _length: Option<usize>) -> Sample {
        let parts = std::iter::once(self.input_part()).chain(self.targets_part()).collect();
        Sample { parts, length: None }
    }

    fn draws(&self) -> bool {
        self.has_dropout()
    }

    fn evaluated(&self) -> Model {
        let mut model = self.clone();
        model.for_each_layer(&mut |layer| {
            if let Layer::BatchNorm(_, statistics) = layer {
                *statistics = Statistics::Running;
            } else if let Some(rate) = layer.dropout_mut() {
                *rate = 0.0;
            }
        });
        Model::Sequential(model)
    }

    fn has_accuracy(&self) -> bool {
        matches!(self.loss, OutputLoss::CrossEntropy(_))
    }

    fn recompute_units(&self) -> KeyedCount {
        KeyedCount { key: LAYERS, count: self.modules().len() }
    }

    fn weights(&self) -> Option<&Path> {
        self.weights.as_deref()
    }

    fn output_elements(&self) -> usize {
        self.output().elements()
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.check_shapes(tree)
    }

    fn sizes_can_be_counted(&self, batch: (&str, usize), tree: &Table) -> Result<(), Problem> {
        self.check_counts(batch, tree)
    }
}
