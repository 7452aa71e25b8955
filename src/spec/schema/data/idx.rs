//! `[data.idx]`

use std::path::PathBuf;

use super::{DataSource, check_split, one_evaluation, pixels, share_beside};
use crate::reader::declare::{Optional, inline_table, key_table};
use crate::reader::error::Problem;
use crate::reader::parsers::{Boolean, SHARE};
use crate::reader::paths::file_path;
use crate::reader::tree::Table;
use data::{DataSet, IdxSet};

key_table! {
    /// Images with one channel and their labels, for `model.sequential`, in the format of MNIST (IDX). Pixels become
    /// numbers from 0 to 1.
    pub struct Idx {
        /// File of images in u8: samples, height and width.
        pub images: PathBuf = file_path("train-images-idx3-ubyte");
        /// File of labels in u8.
        pub labels: PathBuf = file_path("train-labels-idx1-ubyte");
        /// Mean of the numbers, which is subtracted (torchvision: `Normalize`).
        pub mean: Vec<f64> = pixels::MEAN, default Vec::new();
        /// Standard deviation of the numbers, which divides the difference.
        pub std: Vec<f64> = pixels::DEVIATION, default Vec::new();
        /// In training: pixels of zeros on each side of an image, from which one of its old size is cut out at random
        /// (torchvision: `RandomCrop` with `padding`).
        pub crop: Option<usize> = pixels::CROP, default None;
        /// In training: whether every second image, at random, is mirrored (torchvision: `RandomHorizontalFlip`).
        pub flip: bool = Boolean, default false;
        /// Files for evaluation only; the others are then for training as a whole. Instead of `split`.
        pub evaluate: Option<IdxFiles> = Optional(inline_table(
            "data.idx.evaluate", "`data.idx.evaluate`",
            "images = \"t10k-images-idx3-ubyte\", labels = \"t10k-labels-idx1-ubyte\"",
        )), default None;
        /// Share of the samples, from the front, for training; the rest is for evaluation. 0.9 without `evaluate`.
        pub split: f64 = SHARE, default share_beside::<IdxFiles>(&evaluate);
    }
}

key_table! {
    /// Files of images and labels.
    pub struct IdxFiles {
        /// File of images.
        pub images: PathBuf = file_path("t10k-images-idx3-ubyte");
        /// File of labels.
        pub labels: PathBuf = file_path("t10k-labels-idx1-ubyte");
    }
}

impl DataSource for Idx {
    fn data_set(&self) -> Box<dyn DataSet> {
        let Idx { images, labels, mean, std, crop, flip, evaluate, split } = self.clone();
        Box::new(IdxSet {
            files: data::IdxFiles { images, labels },
            evaluate: evaluate.map(|IdxFiles { images, labels }| data::IdxFiles { images, labels }),
            pixels: pixels::pixels(&mean, &std, crop, flip),
            split,
        })
    }

    fn has_tensors(&self) -> bool {
        true
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        if self.evaluate.is_none() { check_split(self.split, "data.idx.split", tree) } else { Ok(()) }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        one_evaluation(&self.evaluate, self.split, ["data.idx.evaluate", "data.idx.split"], tree)?;
        pixels::check("data.idx", (&self.mean, &self.std), 1, tree)
    }
}
