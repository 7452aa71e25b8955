//! `[data]`: one file for each kind of data set. To add one, add its file and its lines here.

mod cifar;
mod idx;
mod images;
mod pixels;
mod random;
mod synthetic;
mod tensors;
mod text;
mod tokens;

pub use cifar::Cifar;
pub use idx::{Idx, IdxFiles};
pub use images::ImageFolders;
pub use random::Random;
pub use synthetic::Synthetic;
pub use tensors::{TensorFiles, TensorSamples};
pub use text::{DocumentArrangement, Mask, PadTo, Text, Tokenizer, Tokens};
pub use tokens::{TokenFiles, TokenFormat};

use std::path::PathBuf;

use super::rules::attach_span;
use crate::reader::declare::choice;
use crate::reader::error::Problem;
use crate::reader::tree::Table;
use data::{DataSet, Part, Sample};

choice! {
    pub enum Data("data"): DataSource {
        text: Text,
        tokens: TokenFiles,
        synthetic: Synthetic,
        random: Random,
        tensors: TensorFiles,
        idx: Idx,
        cifar: Cifar,
        images: ImageFolders,
    }
    later "csv"
}

/// A kind of data set.
trait DataSource {
    /// The reader of the data.
    fn data_set(&self) -> Box<dyn DataSet>;

    /// Fails if `split` leaves no data to evaluate on.
    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem>;

    /// Whether samples are tensors, which layers in a list read; otherwise they are tokens.
    fn has_tensors(&self) -> bool {
        false
    }

    /// The parts of a sample beside those that a model requests, which this sample has.
    fn added_parts(&self, _requested: &Sample) -> Vec<Part> {
        Vec::new()
    }

    /// The multiple that the lengths of micro-batches are rounded up to, if each is padded to its longest document.
    fn batch_multiple(&self) -> Option<usize> {
        None
    }

    /// Rules between its own keys.
    fn check(&self, _tree: &Table) -> Result<(), Problem> {
        Ok(())
    }
}

impl Data {
    /// The reader of the data.
    pub fn data_set(&self) -> Box<dyn DataSet> {
        self.each().data_set()
    }

    pub(super) fn has_tensors(&self) -> bool {
        self.each().has_tensors()
    }

    /// The parts of a sample beside those that a model requests, which this sample has.
    pub fn added_parts(&self, requested: &Sample) -> Vec<Part> {
        self.each().added_parts(requested)
    }

    /// The multiple that the lengths of micro-batches are rounded up to, if each is padded to its longest document.
    pub fn batch_multiple(&self) -> Option<usize> {
        self.each().batch_multiple()
    }

    pub(super) fn check(&self, tree: &Table) -> Result<(), Problem> {
        self.each().check(tree)
    }

    pub(super) fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        self.each().has_evaluation_data(tree)
    }
}

/// The share of the files for training: all, if others are for evaluation.
fn default_split<'a>(evaluate: impl Into<Option<&'a Vec<PathBuf>>>) -> f64 {
    if evaluate.into().is_none_or(Vec::is_empty) { 0.9 } else { 1.0 }
}

/// Fails if evaluation has both files of its own and a share of those for training.
fn one_source_of_evaluation(
    evaluate: &[PathBuf],
    split: f64,
    keys: [&'static str; 2],
    tree: &Table,
) -> Result<(), Problem> {
    if evaluate.is_empty() || split >= 1.0 {
        return Ok(());
    }
    let message =
        format!("evaluate has the files for evaluation, but split = {split} takes a share of paths as well");
    Err(attach_span(message, &keys, tree, "remove split or evaluate"))
}

/// The share of the samples for training: all, if others are for evaluation.
fn share_beside<'a, T: 'a>(evaluate: impl Into<Option<&'a Option<T>>>) -> f64 {
    if evaluate.into().is_some_and(Option::is_some) { 1.0 } else { 0.9 }
}

/// Fails if evaluation has both samples of its own and a share of those for training.
fn one_evaluation<T>(
    evaluate: &Option<T>,
    split: f64,
    keys: [&'static str; 2],
    tree: &Table,
) -> Result<(), Problem> {
    if evaluate.is_none() || split >= 1.0 {
        return Ok(());
    }
    let message = format!(
        "evaluate has the samples for evaluation, but split = {split} takes a share of the others as well"
    );
    Err(attach_span(message, &keys, tree, "remove split or evaluate"))
}

/// Fails if the training share is the whole data set.
fn check_split(split: f64, key: &'static str, tree: &Table) -> Result<(), Problem> {
    if split < 1.0 {
        return Ok(());
    }
    let message = format!("{key} = 1 leaves no data to evaluate on");
    Err(attach_span(message, &[key, "evaluation"], tree, "use 0.9, or evaluation = \"off\""))
}
