//! `[data.cifar]`

use std::path::PathBuf;

use super::{DataSource, check_split, default_split, one_source_of_evaluation, pixels};
use crate::reader::declare::{Writable, key_table};
use crate::reader::error::Problem;
use crate::reader::forms::Form;
use crate::reader::keys::ValueParser;
use crate::reader::list::List;
use crate::reader::parsers::{Boolean, SHARE};
use crate::reader::paths::{EVALUATION_PATHS, PATHS, PathCodec};
use crate::reader::tree::{Table, Value};
use data::{CifarClasses, CifarSet, DataSet};

const FILES: List<PathCodec> = List { example: "[\"cifar-10-batches-bin/data_batch_*.bin\"]", ..PATHS };
const EVALUATION: List<PathCodec> =
    List { example: "[\"cifar-10-batches-bin/test_batch.bin\"]", ..EVALUATION_PATHS };

/// The number of classes: 10 or 100.
struct Classes;

impl ValueParser for Classes {
    type Output = usize;

    fn parse(&self, value: &Value) -> Option<usize> {
        match value {
            Value::Integer(10) => Some(10),
            Value::Integer(100) => Some(100),
            _ => None,
        }
    }

    fn expected(&self) -> String {
        "10 or 100".to_owned()
    }

    fn forms(&self) -> Vec<Form> {
        vec![Form::Integers(&[10, 100])]
    }
}

impl Writable for Classes {
    fn text(&self, value: &usize) -> String {
        value.to_string()
    }
}

key_table! {
    /// Images of CIFAR-10 or CIFAR-100, for `model.sequential`, in their binary version: [3, 32, 32]. Pixels become numbers
    /// from 0 to 1.
    pub struct Cifar {
        /// Paths and globs of files of records, relative to the experiment file; `${VARIABLE}` is expanded.
        pub paths: Vec<PathBuf> = FILES;
        /// The number of classes: 100 is that of the fine labels of CIFAR-100.
        pub classes: usize = Classes, default 10;
        /// Mean of the numbers of each channel, which is subtracted (torchvision: `Normalize`).
        pub mean: Vec<f64> = pixels::MEAN, default Vec::new();
        /// Standard deviation of the numbers of each channel, which divides the difference.
        pub std: Vec<f64> = pixels::DEVIATION, default Vec::new();
        /// In training: pixels of zeros on each side of an image, from which one of its old size is cut out at random
        /// (torchvision: `RandomCrop` with `padding`).
        pub crop: Option<usize> = pixels::CROP, default None;
        /// In training: whether every second image, at random, is mirrored (torchvision: `RandomHorizontalFlip`).
        pub flip: bool = Boolean, default false;
        /// Paths and globs of files for evaluation only; `paths` are then for training as a whole. Instead of `split`.
        pub evaluate: Vec<PathBuf> = EVALUATION, default Vec::new();
        /// Share of the samples, from the front, for training; the rest is for evaluation. 0.9 without `evaluate`.
        pub split: f64 = SHARE, default default_split(&evaluate);
    }
}

impl DataSource for Cifar {
    fn data_set(&self) -> Box<dyn DataSet> {
        let Cifar { paths, classes, mean, std, crop, flip, evaluate, split } = self.clone();
        let classes = if classes == 10 { CifarClasses::Ten } else { CifarClasses::Hundred };
        let pixels = pixels::pixels(&mean, &std, crop, flip);
        Box::new(CifarSet { paths, classes, pixels, evaluate, split })
    }

    fn has_tensors(&self) -> bool {
        true
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        if self.evaluate.is_empty() { check_split(self.split, "data.cifar.split", tree) } else { Ok(()) }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        let keys = ["data.cifar.evaluate", "data.cifar.split"];
        one_source_of_evaluation(&self.evaluate, self.split, keys, tree)?;
        pixels::check("data.cifar", (&self.mean, &self.std), 3, tree)
    }
}
