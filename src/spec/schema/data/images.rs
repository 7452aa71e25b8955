//! `[data.images]`

use std::path::PathBuf;

use super::{DataSource, check_split, one_evaluation, pixels, share_beside};
use crate::reader::declare::{Optional, key_table};
use crate::reader::error::Problem;
use crate::reader::parsers::{Boolean, SHARE};
use crate::reader::paths::file_path;
use crate::reader::tree::Table;
use data::{DataSet, ImageSet};

key_table! {
    /// PNG and JPEG images for `model.sequential`, in a folder for each class (torchvision: `ImageFolder`), resized to the
    /// model's input: [3, H, W], or [1, H, W] for shades of grey. Pixels become numbers from 0 to 1.
    pub struct ImageFolders {
        /// Folder with a folder for each class.
        pub folder: PathBuf = file_path("images/train");
        /// Mean of the numbers of each channel, which is subtracted (torchvision: `Normalize`).
        pub mean: Vec<f64> = pixels::MEAN, default Vec::new();
        /// Standard deviation of the numbers of each channel, which divides the difference.
        pub std: Vec<f64> = pixels::DEVIATION, default Vec::new();
        /// In training: pixels of zeros on each side of an image, from which one of its old size is cut out at random
        /// (torchvision: `RandomCrop` with `padding`).
        pub crop: Option<usize> = pixels::CROP, default None;
        /// In training: whether every second image, at random, is mirrored (torchvision: `RandomHorizontalFlip`).
        pub flip: bool = Boolean, default false;
        /// Folder for evaluation only, with folders of the same names; the other is then for training as a whole. Instead
        /// of `split`.
        pub evaluate: Option<PathBuf> = Optional(file_path("images/val")), default None;
        /// Share of the images for training, in the order of their digests; the rest is for evaluation. 0.9 without
        /// `evaluate`.
        pub split: f64 = SHARE, default share_beside::<PathBuf>(&evaluate);
    }
}

impl DataSource for ImageFolders {
    fn data_set(&self) -> Box<dyn DataSet> {
        let ImageFolders { folder, mean, std, crop, flip, evaluate, split } = self.clone();
        Box::new(ImageSet { folder, evaluate, pixels: pixels::pixels(&mean, &std, crop, flip), split })
    }

    fn has_tensors(&self) -> bool {
        true
    }

    fn has_evaluation_data(&self, tree: &Table) -> Result<(), Problem> {
        if self.evaluate.is_none() { check_split(self.split, "data.images.split", tree) } else { Ok(()) }
    }

    fn check(&self, tree: &Table) -> Result<(), Problem> {
        one_evaluation(&self.evaluate, self.split, ["data.images.evaluate", "data.images.split"], tree)
    }
}
