//! Samples whose inputs and targets are stored numbers.

use std::path::{Path, PathBuf};

use super::{InputMemory, NumberType, ReadSamples, SampleMemory, StoredSamples, TargetMemory};
use crate::digest::{self, FileDigest};
use crate::error::count as counted;
use crate::ids::Ids;
use crate::pixels::Pixels;
use crate::{DataError, DigestCache, Part, PartRole, Sample};
use ops::DType;

/// The keys of the experiment that name the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PairKeys {
    pub(crate) input: &'static str,
    pub(crate) targets: &'static str,
}

/// How stored numbers become an input.
#[derive(Clone, Debug)]
pub(crate) enum Transform {
    /// Each is multiplied by this.
    Scale(f32),
    /// They are the pixels of an image, `[C, H, W]` in u8.
    Pixels(Pixels),
}

/// Inputs and targets, as many of each.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) input: StoredSamples,
    pub(crate) targets: StoredSamples,
    /// The largest class, if targets are integers.
    pub(crate) largest: Option<u32>,
    pub(crate) transform: Transform,
    pub(crate) keys: PairKeys,
}

impl Pair {
    /// Pairs inputs with targets, whose largest class is not known yet.
    ///
    /// # Errors
    /// Their numbers differ.
    pub(crate) fn new(
        input: StoredSamples,
        targets: StoredSamples,
        transform: Transform,
        keys: PairKeys,
    ) -> Result<Pair, DataError> {
        if input.count == targets.count {
            return Ok(Pair { input, targets, largest: None, transform, keys });
        }
        let problem = format!(
            "has the targets of {}, but {} has {}",
            counted(targets.count, "sample"),
            input.file.path().display(),
            counted(input.count, "input")
        );
        let error = unfit(&targets, problem, "use files of the same samples, in the same order");
        Err(error.in_key(keys.targets))
    }

    /// Digests the files, and finds the largest class, if targets are integers. `names`: of the tensors in the files, which
    /// make other data of the same files.
    ///
    /// # Errors
    /// A file is unreadable, or has changed.
    pub(crate) fn examined(
        self,
        names: [&str; 2],
        cache: &mut DigestCache,
    ) -> Result<(Pair, (PathBuf, FileDigest)), DataError> {
        let [input, targets] = [&self.input, &self.targets].map(|samples| samples.file.path().to_owned());
        let unreadable = |path: &Path, error| DataError::Unreadable { path: path.to_owned(), error };
        let of_input =
            cache.of_file(&input).map_err(|error| unreadable(&input, error).in_key(self.keys.input))?;
        let examined = match self.targets.number.is_integer() {
            true => cache.of_classes(&targets, names[1], || self.targets.largest_class()),
            false => match cache.of_file(&targets) {
                Ok(digest) => Ok(digest.into()),
                Err(error) => Err(unreadable(&targets, error)),
            },
        };
        let examined = examined.map_err(|error| error.in_key(self.keys.targets))?;
        let largest = self.targets.number.is_integer().then_some(examined.largest);
        let (bytes, names) = (of_input.bytes, digest::of_bytes(names.join(" ").as_bytes()));
        let sha256 = digest::combine(&[of_input, examined.digest, names]);
        Ok((Pair { largest, ..self }, (input, FileDigest { bytes, sha256 })))
    }

    /// Checks the shape and the numbers of the input against the model's.
    fn check_input(&self, requested: &Part) -> Result<(), DataError> {
        let asked = requested.ty.shape.dims();
        let fits = match (&self.transform, self.input.dims.as_slice()) {
            (Transform::Pixels(_), [1, size @ ..]) if asked == size => true,
            (Transform::Pixels(_), _) if asked == [self.input.elements()] => true,
            (_, dims) => asked == dims,
        };
        if let (true, Some(below)) = (fits, requested.below) {
            return self.check_ids(below.count);
        }
        if fits && (requested.ty.dtype != DType::U8 || self.input.number == NumberType::U8) {
            return Ok(());
        }
        if fits {
            let problem =
                format!("has inputs of {}, which input_dtype = \"u8\" would change", self.input.describe());
            let help = "use input_dtype = \"fp32\", or store the inputs as u8";
            return Err(unfit(&self.input, problem, help).in_key(self.keys.input));
        }
        let problem =
            format!("has inputs of {}, but model.sequential.input is {asked:?}", self.input.describe());
        let help = match asked.iter().product::<usize>() == self.input.elements() {
            true => format!("use input = {:?}, or store the samples in the model's shape", self.input.dims),
            false => format!("use input = {:?}", self.input.dims),
        };
        Err(unfit(&self.input, problem, help).in_key(self.keys.input))
    }

    /// Checks that the input is integers below this count.
    fn check_ids(&self, count: usize) -> Result<(), DataError> {
        let error = |problem, help: &str| Err(unfit(&self.input, problem, help).in_key(self.keys.input));
        match self.transform {
            Transform::Scale(1.0) if self.input.number.is_integer() => {}
            Transform::Scale(1.0) => {
                let problem =
                    format!("has inputs of {}, but embedding takes integers", self.input.describe());
                return error(problem, "store ids as u8, i32 or i64");
            }
            Transform::Scale(scale) => {
                let problem = format!("is read with scale = {scale}, but embedding takes integers");
                return error(problem, "remove scale");
            }
            Transform::Pixels(_) => {
                return error("has pixels, but embedding takes ids".to_owned(), "use data.tensors");
            }
        }
        let Some(wrong) = self.input.wrong_class(count)? else { return Ok(()) };
        error(
            format!(
                "has id {} in sample {}, at byte {}; embedding has count = {count}, for ids 0 to {}",
                wrong.class,
                wrong.sample,
                wrong.byte,
                count - 1
            ),
            match usize::try_from(wrong.class) {
                Ok(_) => "use a larger count",
                Err(_) => "number the ids from 0",
            },
        )
    }

    /// Checks the shape of targets against the model's, and classes against their number.
    fn check_targets(&self, requested: &Part) -> Result<(), DataError> {
        let (found, error) = (&self.targets, |problem, help: &str| {
            Err(unfit(&self.targets, problem, help).in_key(self.keys.targets))
        });
        let dims = requested.ty.shape.dims();
        if dims != found.dims {
            let problem =
                format!("has targets of {}, but the model needs {}", found.describe(), requested.ty);
            let help = match dims.iter().product::<usize>() == found.elements() {
                true => "store the targets in the shape that the model needs, without dimensions of 1",
                false => "use another loss, or a last layer whose output has the targets' shape",
            };
            return error(problem, help);
        }
        let (Some(below), Some(largest)) = (requested.below, self.largest) else {
            return match requested.below {
                None => Ok(()),
                Some(_) => error(
                    format!("has targets of {}, but classes are integers", found.describe()),
                    "store classes as u8, i32 or i64, or use another loss",
                ),
            };
        };
        if (largest as usize) < below.count {
            return Ok(());
        }
        let Some(wrong) = found.wrong_class(below.count)? else {
            return Err(DataError::Changed { path: found.file.path().to_owned() });
        };
        error(
            format!(
                "has class {} for sample {}, at byte {}; the model has classes 0 to {}",
                wrong.class,
                wrong.sample,
                wrong.byte,
                below.count - 1
            ),
            match usize::try_from(wrong.class) {
                Ok(_) => "use a last layer with an output for each class",
                Err(_) => "number the classes from 0",
            },
        )
    }
}

impl ReadSamples for Pair {
    fn count(&self) -> u64 {
        self.input.count
    }

    fn description(&self) -> String {
        let targets = match self.largest {
            Some(largest) if largest != u32::MAX => format!("integers 0 to {largest}"),
            _ => "numbers".to_owned(),
        };
        format!("input {}, targets {} ({targets})", self.input.describe(), self.targets.describe())
    }

    fn check(&self, sample: &Sample) -> Result<(), DataError> {
        sample.parts.iter().try_for_each(|requested| match requested.role {
            PartRole::Input => self.check_input(requested),
            PartRole::Target => self.check_targets(requested),
            _ => Ok(()),
        })
    }

    fn read(&self, index: u64, draw: Option<u64>, memory: SampleMemory<'_>) -> Result<(), DataError> {
        match (memory.input, &self.transform) {
            (Some(InputMemory::Ids { ids, .. }), _) => read_ids(&self.input, index, ids)?,
            (Some(InputMemory::Numbers(numbers)), Transform::Scale(scale)) => {
                self.input.read_numbers(index, *scale, numbers)?;
            }
            (Some(InputMemory::Pixels(stored)), Transform::Scale(_)) => {
                self.input.read_bytes(index, 0, stored)?;
            }
            (Some(input), Transform::Pixels(_)) => {
                let mut stored = vec![0; self.input.elements()];
                self.input.read_bytes(index, 0, &mut stored)?;
                self.prepare(draw, &stored, input);
            }
            (None, _) => {}
        }
        match memory.targets {
            Some(TargetMemory::Classes { ids, .. }) => read_ids(&self.targets, index, ids),
            Some(TargetMemory::Numbers(numbers)) => self.targets.read_numbers(index, 1.0, numbers),
            None => Ok(()),
        }
    }

    fn prepare(&self, draw: Option<u64>, held: &[u8], input: InputMemory<'_>) {
        match (&self.transform, self.input.dims.as_slice()) {
            (Transform::Pixels(pixels), &[_, height, width]) => {
                pixels.fill(held, [height, width], draw, input);
            }
            _ => input.copy_from(held),
        }
    }
}

/// Reads a sample's integers, which are known to be within bounds.
fn read_ids(samples: &StoredSamples, index: u64, ids: Ids<'_>) -> Result<(), DataError> {
    let mut rest = Some(ids);
    samples.read_classes(index, |_, stored| {
        let Some(ids) = rest.take() else { return };
        let piece = stored.size_hint().0.min(ids.len());
        let (mut ids, others) = ids.split_at(piece);
        ids.put(&mut stored.map(|id| id as u32));
        rest = Some(others);
    })
}

fn unfit(samples: &StoredSamples, problem: String, help: impl Into<String>) -> DataError {
    DataError::Unfit { path: samples.file.path().to_owned(), problem, help: help.into() }
}
