//! `[model]`: one file for each model. To add one, add its file and its lines here.

mod hf;
mod sequential;
mod transformer;

use std::path::Path;

pub use hf::{BuiltInModel, Hf, HfConfiguration, ModelFamily, built_in_models};
pub(crate) use hf::{decides, expand_shorthand, shorthand};
pub use sequential::{
    ActivationKeys, ActivationLayer, AttentionLayer, BatchNormLayer, BlockNorm, Branch, ConvLayer,
    CrossEntropyLoss, EmbeddingLayer, GroupNormLayer, Layer, LayerActivation, LinearLayer, Module, NormLayer,
    OutputLoss, PoolLayer, ResidualLayer, Sequential, Statistics, TransformerBlock,
};
pub(super) use transformer::RATE;
pub use transformer::{
    Dropout, Experts, MlpActivation, Norm, NormPlacement, Positions, QkNormOver, Rotary, RotaryScaling,
    SubLayers, Transformer,
};

use crate::reader::declare::choice;
use crate::reader::error::Problem;
use crate::reader::tree::Table;
use data::{KeyedCount, Sample, TensorNaming};

choice! {
    #[expect(clippy::large_enum_variant, reason = "a run has one model")]
    pub enum Model("model"): Architecture {
        transformer: Transformer,
        sequential: Sequential,
    }
    or hf: Hf as Transformer
}

/// A model.
trait Architecture {
    /// Its kind and sizes, in one line.
    fn description(&self) -> String;

    /// The parts of each sample that it reads, for samples of this length; `None`: of its own length.
    fn sample(&self, length: Option<usize>) -> Sample;

    /// Whether it draws random numbers in training.
    fn draws(&self) -> bool;

    /// The model in evaluation: without dropout, with the running statistics of batch norm.
    fn evaluated(&self) -> Model;

    /// Whether its evaluations report the share of correct classes.
    fn has_accuracy(&self) -> bool {
        false
    }

    /// The number of layers that can be recomputed, and the key that sets it.
    fn recompute_units(&self) -> KeyedCount;

    /// The file of its initial parameters, if there is one.
    fn weights(&self) -> Option<&Path>;

    /// Elements of its output for one sample: its logits.
    fn output_elements(&self) -> usize;

    /// Checks rules between its own keys.
    fn check(&self, tree: &Table) -> Result<(), Problem>;

    /// Fails if bytes or operations of a batch, given with its key, exceed 64-bit counters. The sums are upper bounds,
    /// with room for every strategy.
    fn sizes_can_be_counted(&self, batch: (&str, usize), tree: &Table) -> Result<(), Problem>;
}

impl Model {
    /// Its kind and sizes, in one line.
    pub fn description(&self) -> String {
        self.each().description()
    }

    /// The parts of each sample that it reads.
    pub fn sample(&self) -> Sample {
        self.sample_of(None)
    }

    /// The parts of each sample that it reads, for samples of this length; `None`: of its own length.
    pub(crate) fn sample_of(&self, length: Option<usize>) -> Sample {
        self.each().sample(length)
    }

    /// How the library's class of the model names its tensors: that of its family, or of this architecture, if there is one.
    pub fn naming(&self) -> Option<TensorNaming> {
        let model = self.transformer()?;
        let family = model.family.or_else(|| Some(model.hf_configuration()?.family));
        family.map(ModelFamily::naming)
    }

    /// Whether it draws random numbers in training.
    pub fn draws(&self) -> bool {
        self.each().draws()
    }

    /// The model in evaluation: without dropout, with the running statistics of batch norm.
    pub fn evaluated(&self) -> Model {
        self.each().evaluated()
    }

    /// Whether its evaluations report the share of correct classes.
    pub fn has_accuracy(&self) -> bool {
        self.each().has_accuracy()
    }

    /// The number of layers that can be recomputed, and the key that sets it.
    pub fn recompute_units(&self) -> KeyedCount {
        self.each().recompute_units()
    }

    /// The file of its initial parameters, if there is one.
    pub fn weights(&self) -> Option<&Path> {
        self.each().weights()
    }

    /// Elements of its output for one sample: its logits.
    pub(super) fn output_elements(&self) -> usize {
        self.each().output_elements()
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.each().check(tree)
    }

    pub(super) fn sizes_can_be_counted(&self, batch: (&str, usize), tree: &Table) -> Result<(), Problem> {
        self.each().sizes_can_be_counted(batch, tree)
    }
}
