//! CIFAR-10 and CIFAR-100 in their binary form: records of labels and an image.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::FileDigest;
use super::files::SplitFiles;
use super::pixels::Pixels;
use super::samples::{
    NumberType, Pair, PairKeys, ReadSamples, SampleFile, Samples, SplitGroups, StoredSamples, Transform,
};
use super::{DataError, DataSet, DigestCache, Inspected, KeyedCount, PartRole, Sample, Source, formats};
use ops::PixelScale;

/// The shape of an image.
const IMAGE: [usize; 3] = [3, 32, 32];
const IMAGE_BYTES: u64 = 3 * 32 * 32;

/// The data set that records are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CifarClasses {
    /// One label.
    Ten,
    /// A coarse label, which is not read, and a fine one.
    Hundred,
}

/// Images of 32 by 32 pixels with three channels, in the order of the sorted paths of their files.
#[derive(Debug)]
pub struct CifarSet {
    /// Absolute paths and globs.
    pub paths: Vec<PathBuf>,
    pub classes: CifarClasses,
    pub pixels: Pixels,
    /// Absolute paths and globs of files for evaluation; empty: a part of `paths` is.
    pub evaluate: Vec<PathBuf>,
    /// The fraction of the training split, which comes first; the rest is the evaluation split.
    pub split: f64,
}

impl CifarClasses {
    pub fn count(self) -> usize {
        match self {
            CifarClasses::Ten => 10,
            CifarClasses::Hundred => 100,
        }
    }

    /// Bytes of labels before an image; the last is the class.
    fn labels(self) -> u64 {
        match self {
            CifarClasses::Ten => 1,
            CifarClasses::Hundred => 2,
        }
    }

    fn other(self) -> CifarClasses {
        match self {
            CifarClasses::Ten => CifarClasses::Hundred,
            CifarClasses::Hundred => CifarClasses::Ten,
        }
    }
}

/// A file of records.
type Records = (Pair, (PathBuf, FileDigest));

impl CifarSet {
    fn open_file(&self, path: &Path, cache: &mut DigestCache) -> Result<Records, DataError> {
        let unfit = |problem, help: String| Err(DataError::Unfit { path: path.to_owned(), problem, help });
        let (file, length) = SampleFile::open(path)?;
        let count = self.classes.count();
        let record = |classes: CifarClasses| classes.labels() + IMAGE_BYTES;
        let stride = record(self.classes);
        if !length.is_multiple_of(stride) {
            let mut head = vec![0; (length as usize).min(formats::HEAD)];
            file.read_at(&mut head, 0)?;
            if let Some((format, _)) = formats::file_format(&head, path) {
                let help = "use the binary version of the data set (\"for C programs\"), unpacked";
                return unfit(format!("is {format}, not binary CIFAR"), help.to_owned());
            }
            let problem = format!("has {length} bytes, not a multiple of {stride}, the size of a record");
            let other = self.classes.other();
            return match length.is_multiple_of(record(other)) {
                true => unfit(problem, format!("use classes = {}", other.count())),
                false => unfit(problem, "the file is incomplete or damaged: unpack it again".to_owned()),
            };
        }
        let (file, count_of) = (Arc::new(file), length / stride);
        let part = |begin, dims| StoredSamples {
            file: file.clone(),
            begin,
            stride,
            number: NumberType::U8,
            dims,
            count: count_of,
        };
        let (images, labels) =
            (part(self.classes.labels(), IMAGE.to_vec()), part(self.classes.labels() - 1, Vec::new()));
        let keys = PairKeys { input: "paths", targets: "paths" };
        let name = format!("CIFAR-{count}");
        let pair = Pair::new(images, labels, Transform::Pixels(self.pixels.clone()), keys)?;
        let (pair, file) = pair.examined(["images", &name], cache)?;
        if pair.largest.is_some_and(|largest| largest as usize >= count)
            && let Some(wrong) = pair.targets.wrong_class(count)?
        {
            let problem = format!(
                "has class {} in record {}, at byte {}; CIFAR-{count} has classes 0 to {}",
                wrong.class,
                wrong.sample,
                wrong.byte,
                count - 1
            );
            return unfit(
                problem,
                "check that the file is of this data set, in its binary version".to_owned(),
            );
        }
        Ok((pair, file))
    }

    fn examine(&self, cache: &mut DigestCache) -> Result<Samples, Vec<DataError>> {
        let files = SplitFiles::find(&self.paths, &self.evaluate)?;
        let SplitFiles { training, evaluation } = files.try_map(|path| self.open_file(&path, cache))?;
        type Groups = (Vec<Box<dyn ReadSamples>>, Vec<(PathBuf, FileDigest)>);
        let groups = |records: Vec<Records>| -> Groups {
            records.into_iter().map(|(pair, file)| (Box::new(pair) as _, file)).unzip()
        };
        let (training, trained) = groups(training);
        let (evaluation, evaluated) = evaluation.map(groups).unzip();
        let files = SplitFiles { training: trained, evaluation: evaluated };
        Samples::new(SplitGroups { training, evaluation, files }, self.split).map_err(|error| vec![error])
    }
}

impl DataSet for CifarSet {
    fn name(&self) -> &'static str {
        "cifar"
    }

    fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn evaluation_paths(&self) -> &[PathBuf] {
        &self.evaluate
    }

    /// Shapes and classes are known.
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

    fn below(&self, part: PartRole) -> Option<KeyedCount> {
        let count = self.classes.count();
        (part == PartRole::Target).then_some(KeyedCount { key: "data.cifar.classes", count })
    }
}
