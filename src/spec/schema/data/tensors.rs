//! `[data.tensors]`

use std::path::PathBuf;

use super::{DataSource, check_split, one_evaluation, share_beside};
use crate::reader::declare::{Optional, inline_table, key_table};
use crate::reader::error::Problem;
use crate::reader::list::List;
use crate::reader::parsers::{POSITIVE, SHARE};
use crate::reader::paths::{EVALUATION_PATHS, PathCodec, file_path};
use crate::reader::tree::Table;
use crate::schema::rules::attach_span;
use data::{DataSet, TensorSet, TensorSource};

const FILES: List<PathCodec> = List { example: "[\"samples/*.safetensors\"]", ..EVALUATION_PATHS };

key_table! {
    /// Samples of `model.sequential` in NumPy (.npy) or safetensors files: `input` and `targets`, or `files`.
    pub struct TensorFiles {
        /// File with the inputs of all samples, in the first dimension; of a safetensors file the tensor `input`, or the
        /// one named behind a #: "file.safetensors#name".
        pub input: Option<PathBuf> = Optional(file_path("x.npy")), default None;
        /// File with the targets of all samples, in the first dimension; of a safetensors file the tensor `targets`, or the
        /// one named behind a #.
        pub targets: Option<PathBuf> = Optional(file_path("y.npy")), default None;
        /// Paths and globs of safetensors files, each with the tensors `input` and `targets` of one sample.
        pub files: Vec<PathBuf> = FILES, default Vec::new();
        /// Factor of the inputs, such as 0.00392156862745098, 1/255, for pixels in u8.
        pub scale: f64 = POSITIVE, default 1.0;
        /// Samples for evaluation only; the others are then for training as a whole. Instead of `split`.
        pub evaluate: Option<TensorSamples> = Optional(inline_table(
            "data.tensors.evaluate", "`data.tensors.evaluate`", "input = \"test-x.npy\", targets = \"test-y.npy\"",
        )), default None;
        /// Share of the samples, from the front, for training; the rest is for evaluation. 0.9 without `evaluate`.
        pub split: f64 = SHARE, default share_beside::<TensorSamples>(&evaluate);
    }
}

key_table! {
    /// Files of samples for evaluation, in the shapes and types of those for training.
    pub struct TensorSamples {
        /// File with the inputs.
        pub input: Option<PathBuf> = Optional(file_path("x.npy")), default None;
        /// File with the targets.
        pub targets: Option<PathBuf> = Optional(file_path("y.npy")), default None;
        /// Paths and globs of files, each with one sample.
        pub files: Vec<PathBuf> = FILES, default Vec::new();
    }
}

/// The samples of the three keys, of which `check` accepts two or one.
fn source(input: &Option<PathBuf>, targets: &Option<PathBuf>, files: &[PathBuf]) -> Option<TensorSource> {
    match (input, targets, files) {
        (Some(input), Some(targets), []) => {
            Some(TensorSource::Pair { input: input.clone(), targets: targets.clone() })
        }
        (None, None, [_, ..]) => Some(TensorSource::Files(files.to_vec())),
        _ => None,
    }
}

impl DataSource for TensorFiles {
    fn data_set(&self) -> Box<dyn DataSet> {
        let TensorFiles { input, targets, files, scale, evaluate, split } = self;
        let none = || TensorSource::Files(Vec::new());
        let samples = source(input, targets, files).unwrap_or_else(none);
        let evaluate = evaluate.as_ref().map(|TensorSamples { input, targets, files }| {
            source(input, targets, files).unwrap_or_else(none)
        });
        Box::new(TensorSet { samples, evaluate, scale: *scale as f32, split: *split })
    }

    fn has_tensors(&self) -> bool {
        true
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        if self.evaluate.is_none() { check_split(self.split, "data.tensors.split", tree) } else { Ok(()) }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        let keys = ["data.tensors.evaluate", "data.tensors.split"];
        one_evaluation(&self.evaluate, self.split, keys, tree)?;
        let TensorFiles { input, targets, files, .. } = self;
        one_form("data.tensors", [input.is_some(), targets.is_some(), !files.is_empty()], tree)?;
        let Some(TensorSamples { input, targets, files }) = &self.evaluate else { return Ok(()) };
        one_form("data.tensors.evaluate", [input.is_some(), targets.is_some(), !files.is_empty()], tree)
    }
}

/// Fails unless there are either `input` and `targets`, or `files`.
fn one_form(table: &str, written: [bool; 3], tree: &Table) -> Result<(), Problem> {
    let (message, help) = match written {
        [true, true, false] | [false, false, true] => return Ok(()),
        [false, false, false] => (
            "has no samples",
            "add input = \"x.npy\" and targets = \"y.npy\", or files = [\"samples/*.safetensors\"]",
        ),
        [_, _, true] => ("has samples in input or targets, and in files", "use input and targets, or files"),
        [true, ..] => ("has inputs without targets", "add targets = \"y.npy\""),
        [_, true, _] => ("has targets without inputs", "add input = \"x.npy\""),
    };
    let keys = ["input", "targets", "files"].map(|key| format!("{table}.{key}"));
    let mut keys: Vec<&str> =
        keys.iter().map(String::as_str).filter(|key| tree.find(key).is_some()).collect();
    if keys.is_empty() {
        keys.push(if tree.find(table).is_some() { table } else { "data" });
    }
    Err(attach_span(format!("{table} {message}"), &keys, tree, help))
}
