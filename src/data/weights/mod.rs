//! Model parameters in safetensors files, written by a dump or published on Hugging Face: checked as a whole, read in
//! pieces.

mod file;
mod folder;
mod index;
mod naming;
mod number;
mod quantized;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub(super) use file::TensorFile;
pub use folder::weights_in;
pub use naming::{CheckpointTensor, Form, RequiredParameter, TensorNaming};
pub(super) use number::f16_to_f32;

use super::DigestCache;
use super::digest::hex;
use base::{brief, regular};
use ops::TensorType;
use quantized::{Quantized, Tensors};

/// A checkpoint whose headers have been read.
#[derive(Debug)]
pub struct Weights {
    /// The declared path: a single file, or an index.
    path: PathBuf,
    files: Vec<TensorFile>,
    /// By name without prefix: the index of the tensor's file, and its full name.
    tensors: Tensors,
    naming: TensorNaming,
}

/// The checkpoint tensors of all parameters of a model.
#[derive(Debug)]
pub struct StoredParameters {
    weights: Weights,
    parameters: BTreeMap<String, Vec<RowBlock>>,
}

/// Consecutive rows of a parameter, from one tensor.
#[derive(Debug)]
struct RowBlock {
    file: usize,
    tensor: String,
    /// Its first row in the tensor.
    first: usize,
    /// Elements per row.
    columns: usize,
    rows: usize,
    is_transposed: bool,
    quantized: Option<Quantized>,
}

/// An unreadable checkpoint, or one that does not match the model.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("cannot read {}: {}", path.display(), regular::reason(error))]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is not a safetensors file: {problem}", path.display())]
    NotTensors { path: PathBuf, problem: String },
    #[error("{} is {format}, not a safetensors file", path.display())]
    OtherFormat { path: PathBuf, format: &'static str },
    #[error("{} is one of {count} files of a checkpoint", path.display())]
    Shard { path: PathBuf, index: PathBuf, count: usize },
    #[error("{} changed during the run", path.display())]
    Changed { path: PathBuf },
    #[error("{} is not an index of safetensors files: {problem}", path.display())]
    NotIndex { path: PathBuf, problem: String },
    #[error("{} has no `{tensor}`, which the model needs as {needed}", path.display())]
    Missing { path: PathBuf, tensor: String, needed: TensorType },
    #[error("{} has `{tensor}` as {found}; the model needs it as {needed}", path.display())]
    Other { path: PathBuf, tensor: String, found: String, needed: String },
    #[error("{} has `{tensor}`, quantized by {format}, which runner does not read", path.display())]
    Packed { path: PathBuf, tensor: String, format: &'static str },
    #[error("{} has `{tensor}`, quantized, but {problem}", path.display())]
    Quantized { path: PathBuf, tensor: String, problem: String },
    #[error("{} has {}, which the model does not", path.display(), first_names(tensors))]
    Unknown { path: PathBuf, tensors: Vec<String> },
}

/// Maximum number of names in a message.
const MOST_NAMED: usize = 4;

fn first_names(names: &[String]) -> String {
    let shown: Vec<String> =
        names.iter().take(MOST_NAMED).map(|name| format!("`{}`", brief::line(name))).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl WeightsError {
    /// Whether the only problem is that the file does not exist on this machine.
    pub fn is_absence(&self) -> bool {
        matches!(self, WeightsError::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// How to fix it.
    pub fn help(&self) -> Cow<'static, str> {
        match self {
            WeightsError::OtherFormat { path, format } if format.contains("PyTorch") => {
                return folder::conversion(path).into();
            }
            WeightsError::Shard { index, .. } if index.is_file() => {
                return format!("use its index: {}", index.display()).into();
            }
            WeightsError::Shard { index, .. } => {
                return format!(
                    "use its index, {}, which is not there: copy it and the other files",
                    index.display()
                )
                .into();
            }
            _ => {}
        }
        Cow::Borrowed(match self {
            WeightsError::Unreadable { .. } => {
                "check that the file exists and is readable; relative paths are relative to the file that contains them"
            }
            WeightsError::NotTensors { .. }
            | WeightsError::OtherFormat { .. }
            | WeightsError::Shard { .. } => {
                "use a file of `sweep --dump`, such as final.safetensors, or a model's model.safetensors"
            }
            WeightsError::Changed { .. } => "sweep again, and do not change the file during a run",
            WeightsError::Packed { .. } => {
                "use the model's 16-bit weights, which lora = { base = \"nf4\" } quantizes, or weights that bitsandbytes quantized"
            }
            WeightsError::Quantized { .. } => "download the files again, or save the quantized model again",
            WeightsError::NotIndex { .. } => {
                "use a model's model.safetensors.index.json, with its files in the same folder"
            }
            WeightsError::Other { found, .. }
                if !number::NAMES.iter().any(|name| found.starts_with(name)) =>
            {
                "convert it to a floating-point type: f64, f32, bf16, f16, f8_e4m3 or f8_e5m2"
            }
            WeightsError::Missing { .. } | WeightsError::Other { .. } | WeightsError::Unknown { .. } => {
                "use the file of a model with the same sizes, or set the model's sizes to those of the file"
            }
        })
    }
}

impl Weights {
    /// Reads the header of a file, or of each file that an index lists. Of names, prefixes that wrappers of a model added to
    /// all are left out.
    ///
    /// # Errors
    /// A file is unreadable, or not a safetensors file.
    pub fn open(path: &Path) -> Result<Weights, WeightsError> {
        let (files, names) = if path.extension().is_some_and(|extension| extension == "json") {
            index::open(path)?
        } else if let Some((index, count)) = folder::index_of_shard(path) {
            return Err(WeightsError::Shard { path: path.to_owned(), index, count });
        } else {
            let file = TensorFile::open(path, true)?;
            let names = file.names().map(|name| (name, 0)).collect();
            (vec![file], names)
        };
        let prefix = folder::wrapper_prefix(names.keys().map(String::as_str));
        let naming = TensorNaming::of(names.keys().map(|name| &name[prefix..]));
        let tensors =
            names.into_iter().map(|(name, file)| (naming.strip(&name[prefix..]).to_owned(), (file, name)));
        Ok(Weights { path: path.to_owned(), files, tensors: tensors.collect(), naming })
    }

    /// The digest of the contents, independent of their location. Files with a cached digest are not read.
    ///
    /// # Errors
    /// A file is unreadable.
    pub fn digest(&self, cache: &mut DigestCache) -> Result<String, WeightsError> {
        let of = |file: &TensorFile| {
            let digest = cache.of_file(file.path()).map_err(|error| file.unreadable(error))?;
            Ok(digest.sha256)
        };
        let digests: Vec<String> = self.files.iter().map(of).collect::<Result<_, _>>()?;
        Ok(match digests.as_slice() {
            [one] => one.clone(),
            several => hex(Sha256::digest(several.join("\n")).as_slice()),
        })
    }

    /// Checks that the checkpoint has exactly the parameters of a model. Further ones would belong to another model.
    ///
    /// # Errors
    /// The first parameter that is missing or differs in shape or type, or all superfluous tensors.
    pub fn check(&self, needed: &[RequiredParameter]) -> Result<(), WeightsError> {
        self.match_tensors(needed).map(|_| ())
    }

    /// Matches the tensors to the parameters of a model.
    ///
    /// # Errors
    /// Those of [`Weights::check`].
    pub fn matched(self, needed: &[RequiredParameter]) -> Result<StoredParameters, WeightsError> {
        let parameters = self.match_tensors(needed)?;
        Ok(StoredParameters { weights: self, parameters })
    }

    fn match_tensors(
        &self,
        needed: &[RequiredParameter],
    ) -> Result<BTreeMap<String, Vec<RowBlock>>, WeightsError> {
        let mut used = BTreeSet::new();
        let mut parameters = BTreeMap::new();
        for needed in needed {
            let mut blocks = Vec::new();
            for stored in needed.stored(self.naming) {
                let block = self.match_tensor(needed, &stored)?;
                used.extend(block.quantized.iter().flat_map(|quantized| quantized.beside.clone()));
                used.insert(stored.tensor);
                blocks.push(block);
            }
            parameters.insert(needed.name.clone(), blocks);
        }
        let is_unknown = |name: &&String| !used.contains(*name) && !self.naming.is_ignored(name);
        let tensors: Vec<String> = self
            .tensors
            .iter()
            .filter(|(name, _)| is_unknown(name))
            .map(|(_, (_, full))| full.clone())
            .collect();
        if !tensors.is_empty() {
            return Err(WeightsError::Unknown { path: self.path.clone(), tensors });
        }
        Ok(parameters)
    }

    /// The rows of a parameter that a tensor provides.
    fn match_tensor(
        &self,
        needed: &RequiredParameter,
        stored: &CheckpointTensor,
    ) -> Result<RowBlock, WeightsError> {
        let (path, tensor) = (self.path.clone(), stored.tensor.clone());
        let (rows, rest) = (stored.rows, &needed.shape.dims()[1..]);
        let columns = rest.iter().product();
        let (first, of) = match stored.form {
            Form::Slice { first, of } => (first, of),
            Form::Plain | Form::Transposed | Form::FirstRows => (0, rows),
        };
        let mut dims = [&[of], rest].concat();
        let quantized = Quantized::of(&tensor, &self.tensors, &self.files, &path)?;
        let is_untransposed = quantized.as_ref().is_some_and(|quantized| quantized.is_untransposed);
        let is_transposed = stored.form == Form::Transposed && !is_untransposed;
        if is_transposed {
            dims.reverse();
        }
        let Some((file, name)) = self.tensors.get(&tensor) else {
            return Err(WeightsError::Missing { path, tensor, needed: TensorType::f32(&dims) });
        };
        let found = self.files[*file].tensor(name);
        let (found_dims, is_number, found) = match &quantized {
            Some(quantized) => (quantized.dims.clone(), true, quantized.to_string()),
            None => (found.dims.clone(), found.is_float(), found.to_string()),
        };
        let has_shape = match stored.form {
            Form::Plain | Form::Transposed | Form::Slice { .. } => found_dims == dims,
            Form::FirstRows => {
                found_dims.first().is_some_and(|first| *first >= rows) && found_dims[1..] == dims[1..]
            }
        };
        if !has_shape || !is_number {
            let or_more = if stored.form == Form::FirstRows { " or with more rows" } else { "" };
            let needed = format!("{}{or_more}", TensorType::f32(&dims));
            return Err(WeightsError::Other { path, tensor: name.clone(), found, needed });
        }
        Ok(RowBlock { file: *file, tensor: name.clone(), first, columns, rows, is_transposed, quantized })
    }
}

impl StoredParameters {
    /// The library's names in the file. `None`: the names of a dump.
    pub fn naming(&self) -> Option<TensorNaming> {
        Some(self.weights.naming).filter(|naming| *naming != TensorNaming::Own)
    }

    /// Reads elements of a parameter, from index `first` on, as f32.
    ///
    /// # Errors
    /// A file has become unreadable or shorter.
    pub fn read(&self, parameter: &str, first: u64, mut numbers: &mut [[u8; 4]]) -> Result<(), WeightsError> {
        let mut first = first as usize;
        for block in &self.parameters[parameter] {
            let len = (block.rows * block.columns).saturating_sub(first).min(numbers.len());
            let (numbers_of_block, rest) = numbers.split_at_mut(len);
            self.read_block(block, first, numbers_of_block)?;
            first = (first + len).saturating_sub(block.rows * block.columns);
            numbers = rest;
        }
        Ok(())
    }

    fn read_block(
        &self,
        block: &RowBlock,
        first: usize,
        numbers: &mut [[u8; 4]],
    ) -> Result<(), WeightsError> {
        let files = &self.weights.files;
        let read = |first, numbers: &mut [[u8; 4]]| match &block.quantized {
            Some(quantized) => quantized.read(files, first, numbers),
            None => files[block.file].read(&block.tensor, first, numbers),
        };
        if numbers.is_empty() {
            return Ok(());
        }
        if !block.is_transposed {
            return read(block.first * block.columns + first, numbers);
        }
        // Transpose: a slice of each of the tensor's rows, which are the parameter's columns.
        let rows = first / block.columns..(first + numbers.len()).div_ceil(block.columns);
        let mut slice = vec![[0; 4]; rows.len()];
        for column in 0..block.columns {
            read(column * block.rows + rows.start, &mut slice)?;
            for (row, number) in rows.clone().zip(&slice) {
                let index = (row * block.columns + column).checked_sub(first);
                if let Some(element) = index.and_then(|index| numbers.get_mut(index)) {
                    *element = *number;
                }
            }
        }
        Ok(())
    }
}

/// The digest of a run's inputs: that of the data, and that of the weights if there are any.
pub fn digest_of_both(data: &str, weights: Option<&str>) -> String {
    weights.map_or_else(|| data.to_owned(), |weights| format!("{data} {weights}"))
}

#[cfg(test)]
mod tests;
