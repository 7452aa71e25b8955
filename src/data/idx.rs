//! Images and labels in the format of MNIST (IDX).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::count as counted;
use super::files::SplitFiles;
use super::pixels::Pixels;
use super::samples::{
    NumberType, Pair, PairKeys, SampleFile, Samples, SplitGroups, StoredSamples, Transform,
};
use super::{DataError, DataSet, DigestCache, Inspected, Sample, Source, formats};
use ops::PixelScale;

/// The key of files for evaluation.
const EVALUATE: &str = "evaluate";

/// The code of u8 in a header.
const U8: u8 = 8;

/// Images in u8 with one channel, and labels.
#[derive(Debug)]
pub struct IdxSet {
    pub files: IdxFiles,
    /// Samples for evaluation; `None`: a part of `files` is.
    pub evaluate: Option<IdxFiles>,
    pub pixels: Pixels,
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

/// Absolute paths.
#[derive(Clone, Debug, PartialEq)]
pub struct IdxFiles {
    pub images: PathBuf,
    pub labels: PathBuf,
}

/// Opens a file whose array has this number of dimensions, of which the first counts samples.
fn open(path: &Path, dimensions: usize, shape: &str) -> Result<StoredSamples, DataError> {
    let unfit =
        |problem, help: &str| DataError::Unfit { path: path.to_owned(), problem, help: help.to_owned() };
    let (file, length) = SampleFile::open(path)?;
    let mut head = vec![0; (length as usize).min(formats::HEAD)];
    file.read_at(&mut head, 0)?;
    let &[0, 0, code, found, ref sizes @ ..] = head.as_slice() else {
        return Err(match formats::file_format(&head, path) {
            Some((format, help)) => unfit(format!("is {format}, not an IDX file"), &help),
            None => unfit(
                "is not an IDX file, which begins with two bytes of 0".to_owned(),
                "use a file in the format of MNIST, such as train-images-idx3-ubyte",
            ),
        });
    };
    if code != U8 {
        let problem = format!("has numbers of type 0x{code:02x}, not 0x08, u8");
        return Err(unfit(problem, "store pixels and labels as u8"));
    }
    if usize::from(found) != dimensions {
        let problem = format!("has {}, not {dimensions}: {shape}", counted(found.into(), "dimension"));
        return Err(unfit(problem, "check that images and labels are not exchanged"));
    }
    let sizes: Vec<u64> =
        sizes.as_chunks().0.iter().take(dimensions).map(|size| u32::from_be_bytes(*size).into()).collect();
    let begin = 4 + 4 * dimensions as u64;
    let numbers = sizes.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    let end = numbers.and_then(|numbers| numbers.checked_add(begin));
    if sizes.len() < dimensions || end != Some(length) {
        let problem = match end.filter(|_| sizes.len() == dimensions) {
            Some(end) => {
                format!("ends at byte {length}; its header declares u8{sizes:?}, which ends at byte {end}")
            }
            None => format!("ends at byte {length}, within its header or before the end that it declares"),
        };
        return Err(unfit(problem, "the file is incomplete or damaged: make it again"));
    }
    let [count, sample @ ..] = sizes.as_slice() else {
        return Err(unfit("has no dimensions".to_owned(), "use a file in the format of MNIST"));
    };
    let dims: Vec<usize> = sample.iter().map(|size| *size as usize).collect();
    let stride = sample.iter().product();
    let file = Arc::new(file);
    Ok(StoredSamples { file, begin, stride, number: NumberType::U8, dims, count: *count })
}

impl IdxFiles {
    fn examine(
        &self,
        pixels: &Pixels,
        evaluates: bool,
        cache: &mut DigestCache,
    ) -> Result<(Pair, (PathBuf, super::digest::FileDigest)), Vec<DataError>> {
        let key = |key| if evaluates { EVALUATE } else { key };
        let keys = PairKeys { input: key("images"), targets: key("labels") };
        let images = open(&self.images, 3, "samples, height and width");
        let labels = open(&self.labels, 1, "samples");
        let (images, labels) = match (images, labels) {
            (Ok(images), Ok(labels)) => (images, labels),
            (images, labels) => {
                let errors = [(images.err(), keys.input), (labels.err(), keys.targets)];
                return Err(errors.into_iter().filter_map(|(error, key)| Some(error?.in_key(key))).collect());
            }
        };
        let dims = [&[1], images.dims.as_slice()].concat();
        let images = StoredSamples { dims, ..images };
        Pair::new(images, labels, Transform::Pixels(pixels.clone()), keys)
            .and_then(|pair| pair.examined(["images", "labels"], cache))
            .map_err(|error| vec![error])
    }
}

impl IdxSet {
    fn examine(&self, cache: &mut DigestCache) -> Result<Samples, Vec<DataError>> {
        let training = self.files.examine(&self.pixels, false, cache);
        let evaluation =
            self.evaluate.as_ref().map(|files| files.examine(&self.pixels, true, cache)).transpose();
        let (training, evaluation) = match (training, evaluation) {
            (Ok(training), Ok(evaluation)) => (training, evaluation),
            (training, evaluation) => {
                let errors = [training.err(), evaluation.err()];
                return Err(errors.into_iter().flatten().flatten().collect());
            }
        };
        let (evaluation, evaluated) = evaluation.unzip();
        let groups = SplitGroups {
            training: vec![Box::new(training.0)],
            evaluation: evaluation.map(|pair| vec![Box::new(pair) as _]),
            files: SplitFiles { training: vec![training.1], evaluation: evaluated.map(|file| vec![file]) },
        };
        Samples::new(groups, self.split).map_err(|error| vec![error])
    }
}

impl DataSet for IdxSet {
    fn name(&self) -> &'static str {
        "idx"
    }

    fn paths(&self) -> &[PathBuf] {
        &[]
    }

    /// Shapes are the model's.
    fn is_known_unread(&self) -> bool {
        true
    }

    fn has_pixels(&self) -> bool {
        true
    }

    fn pixel_scale(&self) -> Option<PixelScale> {
        Some(self.pixels.scale())
    }

    fn augments(&self) -> bool {
        self.pixels.augments()
    }

    fn inspect(&self, cache: &mut DigestCache) -> Inspected {
        Ok(Box::new(self.examine(cache)?))
    }

    fn open(&self, _sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        let first = |errors: Vec<DataError>| errors.into_iter().next().unwrap_or(DataError::NoPaths);
        Ok(Box::new(self.examine(cache).map_err(first)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batch, KeyedCount, Order, Part, PartRole, TrainingStep};
    use ops::TensorType;

    /// Three images of 2 by 2 pixels, and their labels.
    fn files(folder: &Path) -> IdxFiles {
        let (images, labels) = (folder.join("images"), folder.join("labels"));
        let pixels: Vec<u8> = (1..=12).map(|pixel| 20 * pixel).collect();
        std::fs::write(&images, [&[0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2], &pixels[..]].concat())
            .unwrap();
        std::fs::write(&labels, [0, 0, 8, 1, 0, 0, 0, 3, 5, 0, 9]).unwrap();
        IdxFiles { images, labels }
    }

    fn inputs(batch: &Batch) -> Vec<u8> {
        let numbers = batch.part("input").unwrap().bytes.as_chunks().0.iter();
        numbers.map(|number| (f32::from_ne_bytes(*number) * 255.0).round() as u8).collect()
    }

    #[test]
    fn training_changes_images_and_evaluation_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        let pixels = Pixels { crop: 1, flips: true, ..Pixels::default() };
        let set = IdxSet { files: files.clone(), evaluate: Some(files), pixels, split: 1.0 };
        let below = Some(KeyedCount { key: "", count: 10 });
        for shape in [&[1, 2, 2][..], &[2, 2], &[4]] {
            let parts = vec![
                Part { role: PartRole::Input, name: "input", ty: TensorType::f32(shape), below: None },
                Part { role: PartRole::Target, name: "targets", ty: TensorType::i32(&[]), below },
            ];
            let sample = Sample { parts, length: None };
            let source = set.open(&sample, &mut DigestCache::default()).unwrap();
            set.check(source.contents(), &sample, true).unwrap();
            let mut batch = Batch::new(&sample.parts, 3);
            source.fill_evaluation(3, 0..3, &mut batch).unwrap();
            let images: Vec<u8> = (1..=12).map(|pixel| 20 * pixel).collect();
            assert_eq!(inputs(&batch), images);
            let classes: Vec<u8> =
                batch.part("targets").unwrap().bytes.chunks(4).map(|class| class[0]).collect();
            assert_eq!(classes, [5, 0, 9]);

            let step = |number, samples: std::ops::Range<u64>| {
                let step = TrainingStep {
                    seed: 1,
                    number,
                    samples: 3,
                    order: Order::Shuffled { keeps_last: false },
                };
                let mut batch = Batch::new(&sample.parts, samples.clone().count());
                source.fill_training(&step, samples, &mut batch).unwrap();
                inputs(&batch)
            };
            assert_eq!(step(0, 1..3), step(0, 0..3)[4..], "a part of a step");
            assert!((0..20).any(|number| step(number, 0..3).contains(&0)), "padding");
            assert!((0..20).any(|number| step(number, 0..3) != step(0, 0..3)));
        }
    }
}
