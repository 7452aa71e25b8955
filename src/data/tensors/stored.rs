//! Tensors in files: all samples of a part in one npy or safetensors file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::npy::{LONGEST, MAGIC, NpyHeader};
use crate::samples::{NumberType, SampleFile, StoredSamples};
use crate::weights::{TensorFile, WeightsError};
use crate::{DataError, formats};
use base::brief;

/// A file, and the name of a tensor in it, if it is a safetensors file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorPlace {
    pub(super) path: PathBuf,
    name: String,
    /// Whether the experiment writes the name.
    is_named: bool,
}

impl TensorPlace {
    /// Splits the name off a path: `x.safetensors#name`. An existing path is taken literally.
    pub(super) fn of(path: &Path, usual: &str) -> TensorPlace {
        let split = path.to_str().and_then(|text| text.rsplit_once('#'));
        match split.filter(|(_, name)| !path.is_file() && !name.is_empty() && !name.contains('/')) {
            Some((path, name)) => TensorPlace { path: path.into(), name: name.to_owned(), is_named: true },
            None => TensorPlace { path: path.to_owned(), name: usual.to_owned(), is_named: false },
        }
    }

    /// The name that a digest of the data contains.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Opens the tensor, whose first dimension counts the samples.
    ///
    /// # Errors
    /// The file is unreadable or damaged, or has no such tensor.
    pub(super) fn open(&self) -> Result<StoredSamples, DataError> {
        let (file, length) = SampleFile::open(&self.path)?;
        let mut head = vec![0; (length as usize).min(LONGEST)];
        file.read_at(&mut head, 0)?;
        if head.starts_with(MAGIC) {
            return self.open_npy(file, length, &head);
        }
        drop(file);
        let tensors = open_tensors(&self.path, ALL)?;
        let [samples] = tensors_of(&self.path, tensors, [&self.name], true)?;
        Ok(samples)
    }

    fn open_npy(&self, file: SampleFile, length: u64, head: &[u8]) -> Result<StoredSamples, DataError> {
        let error = |problem, help: &str| unfit(&self.path, problem, help);
        if self.is_named {
            let problem = format!("is a NumPy file, which has no tensor `{}`", brief::line(&self.name));
            return Err(error(problem, "remove the name behind #"));
        }
        let header = NpyHeader::parse(head).map_err(|(problem, help)| error(problem, help))?;
        let NpyHeader { begin, number, shape } = header;
        let numbers = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size as u64));
        let bytes = numbers.and_then(|numbers| numbers.checked_mul(number.bytes() as u64));
        let end = bytes.and_then(|bytes| bytes.checked_add(begin as u64));
        if end != Some(length) {
            let expected = end.map_or("beyond 64 bits".to_owned(), |end| format!("at byte {end}"));
            let problem = format!(
                "ends at byte {length}; its header of {begin} bytes declares {}{shape:?}, which ends {expected}",
                number.name()
            );
            return Err(error(problem, "the file is incomplete or damaged: make it again"));
        }
        let whole = StoredSamples {
            file: Arc::new(file),
            begin: begin as u64,
            stride: 0,
            number,
            dims: shape,
            count: 1,
        };
        by_sample(whole)
    }
}

/// The forms that a file may have, for messages.
#[derive(Clone, Copy)]
pub(super) struct FileForms {
    /// Of a file in another form.
    not: &'static str,
    help: &'static str,
}

/// All samples of a part.
const ALL: FileForms = FileForms {
    not: "neither .npy nor safetensors",
    help: "use a .npy file of numpy.save, or a file of safetensors.torch.save_file",
};
/// One sample.
pub(super) const ONE: FileForms = FileForms {
    not: "not a safetensors file of one sample",
    help: "use safetensors files with the tensors `input` and `targets`, or the keys input and targets for files of all samples",
};

/// Opens a safetensors file.
///
/// # Errors
/// It is unreadable, or of another format.
pub(super) fn open_tensors(path: &Path, forms: FileForms) -> Result<TensorFile, DataError> {
    let FileForms { not, help } = forms;
    TensorFile::open(path, true).map_err(|error| match error {
        WeightsError::Unreadable { path, error } => DataError::Unreadable { path, error },
        WeightsError::Changed { path } => DataError::Changed { path },
        WeightsError::OtherFormat { path, format } => unfit(&path, format!("is {format}, {not}"), help),
        WeightsError::NotTensors { path, problem } => match known_format(&path) {
            Some(format) => unfit(&path, format!("is {format}, {not}"), help),
            None => unfit(&path, format!("is {not}: {problem}"), help),
        },
        other => unfit(path, other.to_string(), help),
    })
}

/// The format of a file, if its beginning shows another one.
fn known_format(path: &Path) -> Option<&'static str> {
    let (file, length) = SampleFile::open(path).ok()?;
    let mut head = vec![0; (length as usize).min(formats::HEAD)];
    file.read_at(&mut head, 0).ok()?;
    let (format, _) = formats::file_format(&head, path)?;
    Some(format).filter(|format| !format.contains("safetensors"))
}

/// The tensors of these names. `counted`: their first dimension counts the samples; otherwise each is one sample.
///
/// # Errors
/// There is no such tensor, or it has another type.
pub(super) fn tensors_of<const COUNT: usize>(
    path: &Path,
    tensors: TensorFile,
    names: [&str; COUNT],
    counted: bool,
) -> Result<[StoredSamples; COUNT], DataError> {
    let mut places = Vec::with_capacity(COUNT);
    for name in names {
        if !tensors.names().any(|found| found == name) {
            let found: Vec<String> =
                tensors.names().take(4).map(|name| format!("`{}`", brief::line(&name))).collect();
            let problem = format!("has no tensor `{}`, but {}", brief::line(name), found.join(", "));
            let help = match counted {
                true => "name the tensor behind the path, as in \"file.safetensors#name\"",
                false => "store the sample as tensors `input` and `targets`",
            };
            return Err(unfit(path, problem, help));
        }
        let stored = tensors.tensor(name);
        let Some(number) = NumberType::of(stored.dtype) else {
            let problem = format!("has `{}` as {stored}, not {}", brief::line(name), NumberType::NAMES);
            return Err(unfit(path, problem, "convert it to one of these types, such as f32"));
        };
        places.push((tensors.offset(name), number, stored.dims));
    }
    let Some(file) = tensors.into_file() else { return Err(DataError::Changed { path: path.to_owned() }) };
    let file = Arc::new(SampleFile::new(path, file));
    let samples = places.into_iter().map(|(begin, number, dims)| {
        let whole = StoredSamples { file: file.clone(), begin, stride: 0, number, dims, count: 1 };
        if counted { by_sample(whole) } else { Ok(whole) }
    });
    let samples: Vec<StoredSamples> = samples.collect::<Result<_, _>>()?;
    samples.try_into().map_err(|_| DataError::Changed { path: path.to_owned() })
}

/// A tensor whose first dimension counts samples.
fn by_sample(whole: StoredSamples) -> Result<StoredSamples, DataError> {
    let Some((count, dims)) = whole.dims.split_first() else {
        let problem = format!("has one number, {}, not one for each sample", whole.describe());
        return Err(unfit(whole.file.path(), problem, "store all samples in the first dimension"));
    };
    let stride = (dims.iter().product::<usize>() * whole.number.bytes()) as u64;
    Ok(StoredSamples { stride, count: *count as u64, dims: dims.to_vec(), ..whole })
}

pub(super) fn unfit(path: &Path, problem: String, help: &str) -> DataError {
    DataError::Unfit { path: path.to_owned(), problem, help: help.to_owned() }
}
