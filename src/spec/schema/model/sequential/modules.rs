//! The modules of a list: its layers with their names, repeated ones one by one.

use std::collections::HashSet;

use super::Sequential;
use super::layer::{Layer, LayerGroup, Repeat, ResidualLayer};
use super::sequence::Branch;

/// A module, with the name that `nn.Sequential` gives it: `3`, or `encoder.3` in a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Module<'a> {
    pub path: String,
    /// Neither `Repeat` nor `Group`.
    pub layer: &'a Layer,
}

/// Modules of a list, those within others included.
pub(super) const MOST_MODULES: u128 = 1 << 14;

impl Sequential {
    /// The modules of the list, those of groups included. Modules within a block or residual layer belong to it. None if
    /// the list is too long, which is an error.
    pub fn modules(&self) -> Vec<Module<'_>> {
        if count(&self.layers) > MOST_MODULES { Vec::new() } else { modules(&self.layers, "") }
    }
}

/// The number of modules of a list, those within others included.
pub(super) fn count(layers: &[Layer]) -> u128 {
    let own = |layer: &Layer| match layer {
        Layer::Repeat(Repeat { times, layers }) => count(layers).saturating_mul(*times as u128),
        Layer::Group(LayerGroup { layers, .. }) => count(layers),
        Layer::Block(layers) => count(layers).saturating_add(1),
        Layer::Residual(ResidualLayer { layers, projection }) => {
            count(layers).saturating_add(count(projection)).saturating_add(1)
        }
        Layer::TransformerBlock(block) => {
            1 + block.branches(1).iter().flat_map(Branch::layers).count() as u128
        }
        _ => 1,
    };
    layers.iter().map(own).fold(0, u128::saturating_add)
}

/// A name that two of these modules have, or two modules within one of them.
pub(super) fn repeated_name(modules: &[Module]) -> Option<String> {
    let mut names = HashSet::new();
    if let Some(again) = modules.iter().find(|module| !names.insert(module.path.as_str())) {
        return Some(again.path.clone());
    }
    modules.iter().find_map(|module| {
        let name = repeated_name(&module.layer.inner().concat())?;
        Some(format!("{}.{name}", module.path))
    })
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
