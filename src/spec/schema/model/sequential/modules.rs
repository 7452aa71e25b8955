//! The modules of a list: its layers with their names, repeated ones one by one.

use super::Sequential;
use super::layer::{Layer, LayerGroup, Repeat};

/// A module, with the name that `nn.Sequential` gives it: `3`, or `encoder.3` in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Module<'a> {
    pub path: String,
    /// Neither `Repeat` nor `Group`.
    pub layer: &'a Layer,
}

impl Sequential {
    /// The modules of the list, those of groups included. Modules within a block or residual layer belong to it.
    pub fn modules(&self) -> Vec<Module<'_>> {
        modules(&self.layers, "")
    }
}

/// The modules of a list of layers; their names begin with the prefix.
pub(super) fn modules<'a>(layers: &'a [Layer], prefix: &str) -> Vec<Module<'a>> {
    let mut all = Vec::new();
    expand(layers, prefix, &mut 0, &mut all);
    all
}

fn expand<'a>(layers: &'a [Layer], prefix: &str, position: &mut usize, all: &mut Vec<Module<'a>>) {
    for layer in layers {
        match layer {
            Layer::Repeat(Repeat { times, layers }) => {
                (0..*times).for_each(|_| expand(layers, prefix, position, all));
            }
            Layer::Group(LayerGroup { name, layers }) => {
                *position += 1;
                expand(layers, &format!("{prefix}{name}."), &mut 0, all);
            }
            layer => {
                all.push(Module { path: format!("{prefix}{position}"), layer });
                *position += 1;
            }
        }
    }
}

impl Layer {
    /// Whether it has an operation: dropout of nothing has none.
    pub fn computes(&self) -> bool {
        match self {
            Layer::Dropout(rate) => *rate > 0.0,
            Layer::Block(layers) => layers.iter().any(Layer::computes),
            Layer::Repeat(Repeat { layers, .. }) | Layer::Group(LayerGroup { layers, .. }) => {
                layers.iter().any(Layer::computes)
            }
            _ => true,
        }
    }

    /// The modules of a block, of the layers of a residual layer, and of its projection.
    pub fn inner(&self) -> [Vec<Module<'_>>; 2] {
        match self {
            Layer::Block(layers) => [modules(layers, ""), Vec::new()],
            Layer::Residual(residual) => {
                [modules(&residual.layers, ""), modules(&residual.projection, "projection.")]
            }
            _ => [Vec::new(), Vec::new()],
        }
    }
}
