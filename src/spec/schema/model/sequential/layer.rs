//! The layers of a list, and the shapes of their outputs.

use std::cmp::Ordering;

use super::codec::{GroupName, INNER, INNER_OR_NONE};
use super::sequence::{AttentionLayer, EmbeddingLayer, TransformerBlock};
use crate::reader::declare::{KeywordEnum, Optional, key_table};
use crate::reader::parsers::{Boolean, DIMENSION, POSITIVE, SHARE, UsizeRange};
use ops::{Activation, Window};

/// PyTorch's default.
const NORM_EPSILON: f64 = 1e-5;

/// Together with the number of layers in a list, it keeps the number of modules countable.
const TIMES: UsizeRange = UsizeRange(1..=1 << 14);

/// One layer of a list.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Layer {
    Activation(ActivationLayer),
    /// Of the last dimension.
    Softmax,
    Linear(LinearLayer),
    LayerNorm(NormLayer),
    RmsNorm(NormLayer),
    Conv2d(ConvLayer),
    MaxPool(PoolLayer),
    AvgPool(PoolLayer),
    /// The mean of each channel of an image.
    GlobalPool,
    BatchNorm(BatchNormLayer, Statistics),
    GroupNorm(GroupNormLayer),
    /// All dimensions of a sample become one.
    Flatten,
    Embedding(EmbeddingLayer),
    /// A learned table that is added to a sequence.
    Positions,
    /// The pixels of an image, as a sequence.
    ToSequence,
    /// The mean of each channel of a sequence.
    MeanPool,
    Attention(AttentionLayer),
    TransformerBlock(TransformerBlock),
    /// The probability with which elements are dropped in training.
    Dropout(f64),
    /// Layers that are one module.
    Block(Vec<Layer>),
    Residual(ResidualLayer),
    Repeat(Repeat),
    Group(LayerGroup),
}

key_table! {
    /// A linear layer on the last dimension (PyTorch: `nn.Linear`).
    pub struct LinearLayer {
        /// Output features.
        pub out: usize = DIMENSION;
        /// Whether it has a bias.
        pub bias: bool = Boolean, default true;
    }
}

key_table! {
    /// A norm of the last dimension.
    #[derive(Copy)]
    pub struct NormLayer: Default {
        /// Added to the variance, or to the mean square, before its square root (`eps`).
        pub epsilon: f64 = POSITIVE, default NORM_EPSILON;
    }
}

/// Sizes of windows and of their steps: the places of a maximum within a window fit a byte.
const CELLS: UsizeRange = UsizeRange(1..=15);

const PADDING: UsizeRange = UsizeRange(0..=15);

key_table! {
    /// A convolution of images with shape [channels, height, width] (PyTorch: `nn.Conv2d`).
    #[derive(Copy)]
    pub struct ConvLayer {
        /// Output channels.
        pub out: usize = DIMENSION;
        /// Height and width of the kernel.
        pub kernel: usize = CELLS;
        /// Step between the places of the kernel.
        pub stride: usize = CELLS, default 1;
        /// Rows and columns of zeros on each side.
        pub padding: usize = PADDING, default 0;
        /// Groups of channels with kernels of their own.
        pub groups: usize = DIMENSION, default 1;
        /// Whether it has a bias.
        pub bias: bool = Boolean, default true;
    }
}

key_table! {
    /// Maximum or mean of each window of an image.
    #[derive(Copy)]
    pub struct PoolLayer {
        /// Height and width of the window.
        pub kernel: usize = CELLS;
        /// Step between windows; as large as the window if absent.
        pub stride: Option<usize> = Optional(CELLS), default None;
        /// Rows and columns of padding on each side; at most half of the window.
        pub padding: usize = PADDING, default 0;
    }
}

key_table! {
    /// Batch norm of each channel of an image, or of each feature (PyTorch: `nn.BatchNorm2d`, `nn.BatchNorm1d`).
    #[derive(Copy)]
    pub struct BatchNormLayer: Default {
        /// Added to the variance before its square root (`eps`).
        pub epsilon: f64 = POSITIVE, default NORM_EPSILON;
        /// Weight of the batch in the running statistics, with which an evaluation normalises.
        pub momentum: f64 = SHARE, default 0.1;
    }
}

key_table! {
    /// Norm of each group of channels of a sample (PyTorch: `nn.GroupNorm`).
    #[derive(Copy)]
    pub struct GroupNormLayer {
        /// Groups of channels.
        pub groups: usize = DIMENSION;
        /// Added to the variance before its square root (`eps`).
        pub epsilon: f64 = POSITIVE, default NORM_EPSILON;
    }
}

/// The statistics with which batch norm normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub enum Statistics {
    /// The batch's, in training.
    Batch,
    /// The running ones, in evaluation.
    Running,
}

key_table! {
    /// Layers whose output is added to their input.
    pub struct ResidualLayer {
        /// The layers.
        pub layers: Vec<Layer> = INNER;
        /// Layers through which the input goes before the addition.
        pub projection: Vec<Layer> = INNER_OR_NONE, default Vec::new();
    }
}

key_table! {
    /// Layers that are repeated, each time with parameters of their own.
    pub struct Repeat {
        /// The number of times.
        pub times: usize = TIMES;
        /// The layers.
        pub layers: Vec<Layer> = INNER;
    }
}

key_table! {
    /// Layers under one name.
    pub struct LayerGroup {
        /// The name, with which the names of its layers begin.
        pub name: String = GroupName;
        /// The layers.
        pub layers: Vec<Layer> = INNER;
    }
}

/// An activation, which PyTorch computes in place or not.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ActivationLayer {
    pub activation: LayerActivation,
    pub inplace: bool,
}

impl ActivationLayer {
    pub fn new(activation: Activation) -> ActivationLayer {
        ActivationLayer { activation: LayerActivation(activation), inplace: false }
    }

    /// The keyword, if PyTorch's backward needs its output.
    pub(super) fn needed_output(self) -> Option<&'static str> {
        let needs = match self.activation.0 {
            Activation::Relu | Activation::Tanh | Activation::Sigmoid => true,
            // `F.leaky_relu_` computes its derivative from its output.
            Activation::LeakyRelu => self.inplace,
            Activation::Gelu | Activation::GeluTanh | Activation::ReluSquared | Activation::Silu => false,
        };
        needs.then(|| self.activation.keyword())
    }
}

key_table! {
    /// The keys of an activation that PyTorch can compute in place.
    #[derive(Copy)]
    pub struct ActivationKeys {
        /// `inplace=True` in PyTorch. Affects only PyTorch's prediction and `export`: this program always overwrites an
        /// input that nothing else reads.
        pub inplace: bool = Boolean, default false;
    }
}

/// An elementwise activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerActivation(pub Activation);

const ACTIVATIONS: [LayerActivation; Activation::ALL.len()] = {
    let mut all = [LayerActivation(Activation::Relu); _];
    let mut index = 0;
    while index < all.len() {
        all[index] = LayerActivation(Activation::ALL[index]);
        index += 1;
    }
    all
};

impl KeywordEnum for LayerActivation {
    const ALL: &'static [LayerActivation] = &ACTIVATIONS;

    fn keyword(self) -> &'static str {
        self.0.definition().word
    }
}

impl PartialOrd for LayerActivation {
    fn partial_cmp(&self, other: &LayerActivation) -> Option<Ordering> {
        self.keyword().partial_cmp(other.keyword())
    }
}

/// Whether any of these layers, or one within them, meets a condition.
pub(super) fn any(layers: &[Layer], condition: fn(&Layer) -> bool) -> bool {
    layers
        .iter()
        .any(|layer| condition(layer) || layer.lists().into_iter().any(|inner| any(inner, condition)))
}

/// The layer that gets the input of these layers alone: the first, or the first within it.
pub(super) fn first(layers: &[Layer]) -> Option<&Layer> {
    match layers.first()? {
        Layer::Block(layers)
        | Layer::Repeat(Repeat { layers, .. })
        | Layer::Group(LayerGroup { layers, .. }) => first(layers),
        layer => Some(layer),
    }
}

/// Changes each of these layers and those within them.
pub(super) fn for_each(layers: &mut [Layer], change: &mut impl FnMut(&mut Layer)) {
    for layer in layers {
        change(layer);
        layer.lists_mut().into_iter().for_each(|inner| for_each(inner, change));
    }
}

impl ConvLayer {
    pub fn window(&self) -> Window {
        Window { kernel: [self.kernel; 2], stride: self.stride, padding: self.padding }
    }
}

impl PoolLayer {
    pub fn window(&self) -> Window {
        let stride = self.stride.unwrap_or(self.kernel);
        Window { kernel: [self.kernel; 2], stride, padding: self.padding }
    }
}

impl Layer {
    /// Layers under one name.
    pub fn group(name: &str, layers: Vec<Layer>) -> Layer {
        Layer::Group(LayerGroup { name: name.to_owned(), layers })
    }

    /// Whether it is a convolution, a pool or a norm of channels.
    pub(super) fn is_of_images(&self) -> bool {
        match self {
            Layer::Conv2d(_)
            | Layer::MaxPool(_)
            | Layer::AvgPool(_)
            | Layer::GlobalPool
            | Layer::BatchNorm(..)
            | Layer::GroupNorm(_)
            | Layer::Flatten => true,
            Layer::Activation(_)
            | Layer::Softmax
            | Layer::Linear(_)
            | Layer::LayerNorm(_)
            | Layer::RmsNorm(_)
            | Layer::Embedding(_)
            | Layer::Positions
            | Layer::ToSequence
            | Layer::MeanPool
            | Layer::Attention(_)
            | Layer::TransformerBlock(_)
            | Layer::Dropout(_)
            | Layer::Block(_)
            | Layer::Residual(_)
            | Layer::Repeat(_)
            | Layer::Group(_) => false,
        }
    }

    /// Whether it depends on the length of a sequence.
    pub(super) fn is_of_sequences(&self) -> bool {
        matches!(
            self,
            Layer::Embedding(_)
                | Layer::Positions
                | Layer::MeanPool
                | Layer::Attention(_)
                | Layer::TransformerBlock(_)
        )
    }

    /// The probability with which training drops elements.
    pub(super) fn dropout(&self) -> f64 {
        match self {
            Layer::Dropout(rate) => *rate,
            Layer::Attention(layer) => layer.dropout,
            Layer::TransformerBlock(block) => block.dropout,
            _ => 0.0,
        }
    }

    /// The probability of a layer that can drop elements.
    pub fn dropout_mut(&mut self) -> Option<&mut f64> {
        match self {
            Layer::Dropout(rate)
            | Layer::Attention(AttentionLayer { dropout: rate, .. })
            | Layer::TransformerBlock(TransformerBlock { dropout: rate, .. }) => Some(rate),
            _ => None,
        }
    }

    /// The lists of layers within a layer.
    fn lists(&self) -> Vec<&[Layer]> {
        match self {
            Layer::Block(layers) => vec![layers],
            Layer::Residual(ResidualLayer { layers, projection }) => vec![layers, projection],
            Layer::Repeat(Repeat { layers, .. }) | Layer::Group(LayerGroup { layers, .. }) => vec![layers],
            _ => Vec::new(),
        }
    }

    fn lists_mut(&mut self) -> Vec<&mut [Layer]> {
        match self {
            Layer::Block(layers) => vec![layers],
            Layer::Residual(ResidualLayer { layers, projection }) => vec![layers, projection],
            Layer::Repeat(Repeat { layers, .. }) | Layer::Group(LayerGroup { layers, .. }) => vec![layers],
            _ => Vec::new(),
        }
    }
}
