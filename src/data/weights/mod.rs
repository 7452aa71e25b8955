//! A model's parameters in safetensors files, such as a dump leaves or Hugging Face's models come in: looked at as a whole, and
//! read a piece at a time.

mod file;
mod index;
mod naming;
mod number;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use naming::{CheckpointTensor, Form, Naming, Needed};

use super::DigestCache;
use super::digest::hex;
use base::brief;
use file::TensorFile;
use ops::TensorType;

/// Files whose headers have been read.
#[derive(Debug)]
pub struct Weights {
    /// What was named: the one file, or the index of all.
    path: PathBuf,
    files: Vec<TensorFile>,
    /// By the names that `naming` has for them: which file each is in, and its name there.
    tensors: BTreeMap<String, (usize, String)>,
    naming: Naming,
}

/// Where all parameters of a model are.
#[derive(Debug)]
pub struct StoredParameters {
    weights: Weights,
    parameters: BTreeMap<String, Vec<Part>>,
}

/// Some rows of a parameter.
#[derive(Debug)]
struct Part {
    file: usize,
    tensor: String,
    /// Elements of a row.
    columns: usize,
    rows: usize,
    is_transposed: bool,
}

/// Why a model cannot start from a file.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is no safetensors file: {problem}", path.display())]
    NotTensors { path: PathBuf, problem: String },
    #[error("{} is no index of safetensors files: {problem}", path.display())]
    NotIndex { path: PathBuf, problem: String },
    #[error("{} has no `{tensor}`, which the model needs as {needed}", path.display())]
    Missing { path: PathBuf, tensor: String, needed: TensorType },
    #[error("{} has `{tensor}` as {found}; the model needs it as {needed}", path.display())]
    Other { path: PathBuf, tensor: String, found: String, needed: String },
    #[error("{} has {}, which the model does not", path.display(), some(tensors))]
    Unknown { path: PathBuf, tensors: Vec<String> },
}

/// How many of several names a message has.
const MOST_NAMED: usize = 4;

fn some(names: &[String]) -> String {
    let shown: Vec<String> =
        names.iter().take(MOST_NAMED).map(|name| format!("`{}`", brief::line(name))).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

impl WeightsError {
    /// Whether the file is not here, and nothing else is wrong.
    pub fn is_absence(&self) -> bool {
        matches!(self, WeightsError::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// What would work.
    pub fn help(&self) -> &'static str {
        match self {
            WeightsError::Unreadable { .. } => {
                "relative paths start at the folder of the file that they are written in; check that it is there and may be \
                 read"
            }
            WeightsError::NotTensors { .. } => {
                "name what `sweep --dump` wrote, such as final.safetensors, or a model's model.safetensors"
            }
            WeightsError::NotIndex { .. } => {
                "name a model's model.safetensors.index.json, with its files beside it"
            }
            WeightsError::Other { found, .. }
                if !number::NAMES.iter().any(|name| found.starts_with(name)) =>
            {
                "write it in numbers with a point: f64, f32, bf16, f16, f8_e4m3 or f8_e5m2"
            }
            WeightsError::Missing { .. } | WeightsError::Other { .. } | WeightsError::Unknown { .. } => {
                "name a file that a model of the same sizes left, or give the model the sizes of the file"
            }
        }
    }
}

impl Weights {
    /// Reads what a file, or each that an index names, says it holds.
    ///
    /// # Errors
    /// One cannot be read, or is no file of tensors.
    pub fn open(path: &Path) -> Result<Weights, WeightsError> {
        let (files, places) = if path.extension().is_some_and(|extension| extension == "json") {
            index::open(path)?
        } else {
            let file = TensorFile::open(path)?;
            let places = file.names().map(|name| (name, 0)).collect();
            (vec![file], places)
        };
        let naming = Naming::of(places.keys().map(String::as_str));
        let tensors = places.into_iter().map(|(name, file)| (naming.strip(&name).to_owned(), (file, name)));
        Ok(Weights { path: path.to_owned(), files, tensors: tensors.collect(), naming })
    }

    /// Names what it holds, wherever it lies; what was digested before is not read again.
    ///
    /// # Errors
    /// It cannot be read.
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

    /// Whether it has what a model needs, and no more: what is left over would be of another model.
    ///
    /// # Errors
    /// The first parameter that it lacks or has otherwise, or what it has too much.
    pub fn check(&self, needed: &[Needed]) -> Result<(), WeightsError> {
        self.places(needed).map(|_| ())
    }

    /// All of it that a model needs.
    ///
    /// # Errors
    /// Those of [`Weights::check`].
    pub fn matched(self, needed: &[Needed]) -> Result<StoredParameters, WeightsError> {
        let parameters = self.places(needed)?;
        Ok(StoredParameters { weights: self, parameters })
    }

    fn places(&self, needed: &[Needed]) -> Result<BTreeMap<String, Vec<Part>>, WeightsError> {
        let mut used = BTreeSet::new();
        let mut parameters = BTreeMap::new();
        for needed in needed {
            let mut parts = Vec::new();
            for stored in needed.stored(self.naming) {
                let (part, name) = self.part(needed, &stored)?;
                parts.push(part);
                used.insert(name);
            }
            parameters.insert(needed.name.clone(), parts);
        }
        let is_unknown = |name: &&String| !used.contains(*name) && !self.naming.is_no_parameter(name);
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

    /// Where some rows of a parameter are, and what they are called there.
    fn part(&self, needed: &Needed, stored: &CheckpointTensor) -> Result<(Part, String), WeightsError> {
        let (path, tensor) = (self.path.clone(), stored.tensor.clone());
        let (rows, rest) = (stored.rows, &needed.shape.dims()[1..]);
        let columns = rest.iter().product();
        let mut dims = [&[rows], rest].concat();
        if stored.form == Form::Transposed {
            dims.reverse();
        }
        let Some((file, name)) = self.tensors.get(&tensor) else {
            return Err(WeightsError::Missing { path, tensor, needed: TensorType::f32(&dims) });
        };
        let found = self.files[*file].tensor(name);
        let suits = match stored.form {
            Form::Plain | Form::Transposed => found.dims == dims,
            Form::FirstRows => {
                found.dims.first().is_some_and(|first| *first >= rows) && found.dims[1..] == dims[1..]
            }
        };
        if !suits || !found.is_numbers() {
            let or_more = if stored.form == Form::FirstRows { " or with more rows" } else { "" };
            let needed = format!("{}{or_more}", TensorType::f32(&dims));
            return Err(WeightsError::Other { path, tensor: name.clone(), found: found.to_string(), needed });
        }
        let is_transposed = stored.form == Form::Transposed;
        Ok((Part { file: *file, tensor: name.clone(), columns, rows, is_transposed }, tensor))
    }
}

impl StoredParameters {
    /// The numbers of a parameter, from this one on, as f32.
    ///
    /// # Errors
    /// A file has become unreadable, or shorter.
    pub fn read(&self, parameter: &str, first: u64, mut numbers: &mut [[u8; 4]]) -> Result<(), WeightsError> {
        let mut first = first as usize;
        for part in &self.parameters[parameter] {
            let len = (part.rows * part.columns).saturating_sub(first).min(numbers.len());
            let (here, rest) = numbers.split_at_mut(len);
            self.read_part(part, first, here)?;
            first = (first + len).saturating_sub(part.rows * part.columns);
            numbers = rest;
        }
        Ok(())
    }

    fn read_part(&self, part: &Part, first: usize, numbers: &mut [[u8; 4]]) -> Result<(), WeightsError> {
        let file = &self.weights.files[part.file];
        if numbers.is_empty() {
            return Ok(());
        }
        if !part.is_transposed {
            return file.read(&part.tensor, first, numbers);
        }
        // A run of each of the tensor's rows, which are the parameter's columns.
        let rows = first / part.columns..(first + numbers.len()).div_ceil(part.columns);
        let mut run = vec![[0; 4]; rows.len()];
        for column in 0..part.columns {
            file.read(&part.tensor, column * part.rows + rows.start, &mut run)?;
            for (row, number) in rows.clone().zip(&run) {
                let place = (row * part.columns + column).checked_sub(first);
                if let Some(place) = place.and_then(|place| numbers.get_mut(place)) {
                    *place = *number;
                }
            }
        }
        Ok(())
    }
}

/// What makes data and weights those that a run was planned with: the data's own digest where there are no others.
pub fn digest_of_both(data: &str, weights: Option<&str>) -> String {
    weights.map_or_else(|| data.to_owned(), |weights| format!("{data} {weights}"))
}

#[cfg(test)]
mod tests;
