//! The layers of a list, and the shapes of their outputs.

use std::cmp::Ordering;

use super::codec::{GroupName, INNER, INNER_OR_NONE};
use crate::reader::declare::key_table;
use crate::reader::parsers::{Boolean, DIMENSION, POSITIVE, UsizeRange};
use ops::Activation;

/// PyTorch's default.
const NORM_EPSILON: f64 = 1e-5;

/// Together with the number of layers in a list, it keeps the number of modules countable.
const TIMES: UsizeRange = UsizeRange(1..=1 << 14);

/// One layer of a list.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Layer {
    Activation(LayerActivation),
    Linear(LinearLayer),
    LayerNorm(NormLayer),
    RmsNorm(NormLayer),
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

/// An elementwise activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerActivation(pub Activation);

impl PartialOrd for LayerActivation {
    fn partial_cmp(&self, other: &LayerActivation) -> Option<Ordering> {
        self.word().partial_cmp(other.word())
    }
}

impl LayerActivation {
    pub(super) fn word(self) -> &'static str {
        self.0.definition().word
    }
}

/// Whether any of these layers, or one within them, meets a condition.
pub(super) fn any(layers: &[Layer], condition: fn(&Layer) -> bool) -> bool {
    layers
        .iter()
        .any(|layer| condition(layer) || layer.lists().into_iter().any(|inner| any(inner, condition)))
}

/// Changes each of these layers and those within them.
pub(super) fn for_each(layers: &mut [Layer], change: &mut impl FnMut(&mut Layer)) {
    for layer in layers {
        change(layer);
        layer.lists_mut().into_iter().for_each(|inner| for_each(inner, change));
    }
}

impl Layer {
    /// Layers under one name.
    pub fn group(name: &str, layers: Vec<Layer>) -> Layer {
        Layer::Group(LayerGroup { name: name.to_owned(), layers })
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
