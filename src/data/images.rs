//! Images in PNG and JPEG files, in a folder for each class.

mod decode;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::digest::{self, FileDigest, Version, versions};
use super::files::SplitFiles;
use super::pixels::Pixels;
use super::samples::{InputMemory, ReadSamples, SampleMemory, Samples, SplitGroups, TargetMemory};
use super::{DataError, DataSet, DigestCache, Inspected, Part, PartRole, Sample, Source};
use ops::PixelScale;

/// The keys of the folders.
const FOLDER: &str = "folder";
const EVALUATE: &str = "evaluate";

/// Endings of files that are read, in lower case; other files are left out.
const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Images in the folders of their classes.
#[derive(Debug)]
pub struct ImageSet {
    /// Absolute path.
    pub folder: PathBuf,
    /// Absolute path of the folder for evaluation; `None`: a part of `folder` is.
    pub evaluate: Option<PathBuf>,
    pub pixels: Pixels,
    /// The fraction of the training split; the rest is the evaluation split.
    pub split: f64,
}

/// A file, and its class.
#[derive(Debug)]
struct ImageFile {
    path: PathBuf,
    class: u32,
    /// The version that was digested.
    version: Version,
}

/// Images of one split.
#[derive(Debug)]
struct Images {
    folder: PathBuf,
    /// In the order of their digests, in which classes are mixed, whatever their names.
    files: Vec<ImageFile>,
    classes: usize,
    pixels: Pixels,
    /// Channels, height and width of the model's input; `None`: not opened for a model.
    shape: Option<[usize; 3]>,
    key: &'static str,
}

/// The images of one split, and their files.
type Group = (Box<dyn ReadSamples>, Vec<(PathBuf, FileDigest)>);

impl ImageSet {
    /// Examines the images, for inputs of this shape.
    fn examine(&self, shape: Option<[usize; 3]>, cache: &mut DigestCache) -> Result<Samples, Vec<DataError>> {
        let names = classes(&self.folder).map_err(|error| vec![error.in_key(FOLDER)])?;
        let mut examine = |folder: &Path, key| -> Result<Group, Vec<DataError>> {
            let (files, digests) = examined(folder, &names, cache)
                .map_err(|errors| errors.into_iter().map(|error| error.in_key(key)).collect::<Vec<_>>())?;
            let (folder, pixels) = (folder.to_owned(), self.pixels.clone());
            let images = Images { folder, files, classes: names.len(), pixels, shape, key };
            Ok((Box::new(images), digests))
        };
        let training = examine(&self.folder, FOLDER)?;
        let evaluation = self.evaluate.as_ref().map(|folder| examine(folder, EVALUATE)).transpose()?;
        let (evaluation, evaluated) = evaluation.unzip();
        let groups = SplitGroups {
            training: vec![training.0],
            evaluation: evaluation.map(|images| vec![images]),
            files: SplitFiles { training: training.1, evaluation: evaluated },
        };
        Samples::new(groups, self.split).map_err(|error| vec![error])
    }
}

/// The names of the folders in a folder, sorted: the classes.
fn classes(folder: &Path) -> Result<Vec<String>, DataError> {
    let names: Vec<String> = entries(folder)?
        .into_iter()
        .filter(|path| path.is_dir())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .filter(|name| !name.starts_with('.'))
        .collect();
    match names.is_empty() {
        false => Ok(names),
        true => {
            let help = "put the images of each class into a folder of their own";
            Err(unfit(folder, "has no folders, one for each class".to_owned(), help))
        }
    }
}

/// The entries of a folder, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |error| DataError::Unreadable { path: folder.to_owned(), error };
    let found = fs::read_dir(folder).map_err(unreadable)?;
    let paths: Result<Vec<PathBuf>, _> = found.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(unreadable)?;
    paths.sort();
    Ok(paths)
}

/// The images of a folder, and their digests with their classes.
type Examined = (Vec<ImageFile>, Vec<(PathBuf, FileDigest)>);

/// Finds and digests the images in the folders of known classes.
fn examined(folder: &Path, names: &[String], cache: &mut DigestCache) -> Result<Examined, Vec<DataError>> {
    let found = classes(folder).map_err(|error| vec![error])?;
    if let Some(other) = found.iter().find(|name| !names.contains(name)) {
        let problem = format!("has a folder `{other}`, which is no class of those for training");
        return Err(vec![unfit(folder, problem, "use the same names of folders for both")]);
    }
    let mut paths = Vec::new();
    for (class, name) in (0u32..).zip(names) {
        let of_class = folder.join(name);
        if !of_class.is_dir() {
            continue;
        }
        let is_image = |path: &PathBuf| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ENDINGS.contains(&ending.to_ascii_lowercase().as_str()))
        };
        let images = entries(&of_class).map_err(|error| vec![error])?.into_iter().filter(is_image);
        let before = paths.len();
        paths.extend(images.map(|path| (path, class)));
        if paths.len() == before {
            let problem = "has no .png, .jpg or .jpeg files".to_owned();
            return Err(vec![unfit(&of_class, problem, "remove the folder, or add images of its class")]);
        }
    }
    // Taken before digesting, so that later changes are detected.
    let before = versions(paths.iter().map(|(path, _)| path)).map_err(|error| vec![error])?;
    // A file may be there twice, also in two classes.
    let mut sorted = BTreeMap::new();
    let mut errors = Vec::new();
    for ((path, class), version) in paths.into_iter().zip(before) {
        match cache.of_image(&path, || decode::check(&path)) {
            Ok(digest) => {
                let digests = [digest.clone(), digest::of_bytes(&class.to_le_bytes())];
                let with_class = FileDigest { sha256: digest::combine(&digests), ..digest };
                let file = ImageFile { path: path.clone(), class, version };
                sorted.insert((with_class.sha256.clone(), path), (file, with_class));
            }
            Err(error) => errors.push(error),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(sorted.into_iter().map(|((_, path), (file, digest))| (file, (path, digest))).unzip())
}

/// Channels, height and width, if an input has the shape of an image.
fn image_shape(sample: &Sample) -> Option<[usize; 3]> {
    let input = sample.part(PartRole::Input)?;
    match *input.ty.shape.dims() {
        [channels @ (1 | 3), height, width] => Some([channels, height, width]),
        _ => None,
    }
}

impl Images {
    fn check_part(&self, requested: &Part, sample: &Sample) -> Result<(), DataError> {
        let error = |problem, help: &str| Err(unfit(&self.folder, problem, help).in_key(self.key));
        match (requested.role, requested.below) {
            (PartRole::Input, _) if image_shape(sample).is_none() => {
                let asked = requested.ty.shape.dims();
                let problem = format!("has images, but model.sequential.input is {asked:?}");
                error(problem, "use input = [3, 224, 224], or [1, 224, 224] for shades of grey")
            }
            (PartRole::Input, _) => self.check_channels(sample),
            (PartRole::Target, Some(below)) if requested.ty.elements() == 1 => {
                if self.classes <= below.count {
                    return Ok(());
                }
                let problem = format!(
                    "has {} folders, one for each class, but the model has {} classes",
                    self.classes, below.count
                );
                error(problem, "use a last layer with an output for each class")
            }
            (PartRole::Target, _) => {
                let problem = format!("has one class for each image, but the model needs {}", requested.ty);
                error(problem, "use loss = \"cross_entropy\", and layers that end with [classes]")
            }
            _ => Ok(()),
        }
    }
}

impl Images {
    /// Checks that each channel has a mean and a deviation, or that none has.
    fn check_channels(&self, sample: &Sample) -> Result<(), DataError> {
        let [channels, ..] = image_shape(sample).unwrap_or_default();
        let Pixels { mean, deviation, .. } = &self.pixels;
        for (key, found) in [("mean", mean.len()), ("std", deviation.len())] {
            if found != 0 && found != channels {
                let [channels, numbers] = [(channels, "channel"), (found, "number")]
                    .map(|(count, noun)| super::error::count(count as u64, noun));
                let problem = format!("is read with {channels}, but {key} has {numbers}");
                return Err(unfit(&self.folder, problem, "use one number for each channel").in_key(key));
            }
        }
        Ok(())
    }
}

impl ReadSamples for Images {
    fn count(&self) -> u64 {
        self.files.len() as u64
    }

    fn description(&self) -> String {
        format!("images in {} classes", self.classes)
    }

    fn check(&self, sample: &Sample) -> Result<(), DataError> {
        sample.parts.iter().try_for_each(|requested| self.check_part(requested, sample))
    }

    fn read(&self, index: u64, draw: Option<u64>, memory: SampleMemory<'_>) -> Result<(), DataError> {
        let ImageFile { path, class, version } = &self.files[index as usize];
        if let (Some(input), Some([channels, height, width])) = (memory.input, self.shape) {
            let pixels = decode::pixels(path, version, [channels, height, width])?;
            self.pixels.fill(&pixels, [height, width], draw, input);
        }
        match memory.targets {
            Some(TargetMemory::Classes { mut ids, .. }) => ids.put(std::iter::once(*class)),
            Some(TargetMemory::Numbers(numbers)) => numbers.fill((*class as f32).to_ne_bytes()),
            None => {}
        }
        Ok(())
    }

    fn prepare(&self, draw: Option<u64>, held: &[u8], input: InputMemory<'_>) {
        if let Some([_, height, width]) = self.shape {
            self.pixels.fill(held, [height, width], draw, input);
        }
    }
}

impl DataSet for ImageSet {
    fn name(&self) -> &'static str {
        "images"
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
        Ok(Box::new(self.examine(None, cache)?))
    }

    fn open(&self, sample: &Sample, cache: &mut DigestCache) -> Result<Box<dyn Source>, DataError> {
        let first = |errors: Vec<DataError>| errors.into_iter().next().unwrap_or(DataError::NoPaths);
        Ok(Box::new(self.examine(image_shape(sample), cache).map_err(first)?))
    }
}

fn unfit(path: &Path, problem: String, help: &str) -> DataError {
    DataError::Unfit { path: path.to_owned(), problem, help: help.to_owned() }
}

#[cfg(test)]
mod tests;
