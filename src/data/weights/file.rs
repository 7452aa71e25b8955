//! One safetensors file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{WeightsError, folder, number};
use crate::digest::Version;
use base::units::Bytes;
use base::{brief, regular};

/// Maximum length of a header: about 300,000 tensors, which take ten times as much memory.
const LONGEST_HEADER: Bytes = Bytes(32 << 20);

/// Bytes to read at a time for conversion; small, since resident memory is measured as the run's.
const PIECE: usize = 16 << 10;

/// A file whose header has been read.
#[derive(Debug)]
pub(crate) struct TensorFile {
    path: PathBuf,
    /// `None`: opened for each read.
    file: Option<File>,
    version: Version,
    tensors: Metadata,
    /// Offset of the data, after the header.
    begin: u64,
}

/// The type of a stored tensor: `f32[256, 128]`.
pub(crate) struct StoredType {
    pub(crate) dtype: Dtype,
    pub(crate) dims: Vec<usize>,
}

impl StoredType {
    /// Whether it has a floating-point type, which parameters need.
    pub(super) fn is_float(&self) -> bool {
        number::is_float(self.dtype)
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        write!(f, "{}[{}]", format!("{:?}", self.dtype).to_lowercase(), dims.join(", "))
    }
}

impl TensorFile {
    /// Reads the header. The file stays open if `keep` is set; otherwise it is opened for each read.
    ///
    /// # Errors
    /// The file is unreadable, or not a safetensors file.
    pub(crate) fn open(path: &Path, keep: bool) -> Result<TensorFile, WeightsError> {
        let unreadable = |error| WeightsError::Unreadable { path: path.to_owned(), error };
        let broken = |problem: String| WeightsError::NotTensors { path: path.to_owned(), problem };
        let mut file = regular::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let bytes = found.len();
        let mut length = [0; 8];
        if bytes < length.len() as u64 {
            return Err(broken(format!("it has only {bytes} bytes")));
        }
        file.read_exact(&mut length).map_err(unreadable)?;
        if let Some(format) = folder::other_format(path, &length) {
            return Err(WeightsError::OtherFormat { path: path.to_owned(), format });
        }
        let length = u64::from_le_bytes(length);
        let begin = length.saturating_add(8);
        if begin > bytes {
            return Err(broken(format!("its header declares {length} bytes, but the file has {bytes}")));
        }
        if length > LONGEST_HEADER.0 {
            let length = Bytes(length);
            return Err(broken(format!("its header has {length}; the maximum is {LONGEST_HEADER}")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let tensors: Metadata =
            serde_json::from_slice(&header).map_err(|error| broken(format!("its header: {error}")))?;
        let version = Version::of(&found);
        let file = TensorFile { path: path.to_owned(), file: keep.then_some(file), version, tensors, begin };
        file.check_sizes(bytes - begin).map_err(broken)?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.tensors.offset_keys().into_iter()
    }

    /// The type of an existing tensor.
    pub(crate) fn tensor(&self, name: &str) -> StoredType {
        let info = self.tensors.info(name).expect("the tensor exists");
        StoredType { dtype: info.dtype, dims: info.shape.clone() }
    }

    /// The offset of an existing tensor's data in the file.
    pub(crate) fn offset(&self, name: &str) -> u64 {
        self.begin + self.tensors.info(name).expect("the tensor exists").data_offsets.0 as u64
    }

    /// The file, if it was kept open, and its version when the header was read.
    pub(crate) fn into_file(self) -> Option<(File, Version)> {
        Some((self.file?, self.version))
    }

    /// The size of an existing tensor in bytes.
    pub(super) fn bytes(&self, name: &str) -> usize {
        let (begin, end) = self.tensors.info(name).expect("the tensor exists").data_offsets;
        end - begin
    }

    /// Reads bytes of a tensor as they are stored, from offset `first` on.
    ///
    /// # Errors
    /// The file has become unreadable or shorter.
    pub(super) fn read_bytes(&self, name: &str, first: usize, bytes: &mut [u8]) -> Result<(), WeightsError> {
        let info = self.tensors.info(name).expect("the tensor exists");
        let opened = if self.file.is_none() { Some(self.reopen()?) } else { None };
        let file = self.file.as_ref().or(opened.as_ref()).expect("it is open, or was opened");
        let begin = self.begin + (info.data_offsets.0 + first) as u64;
        file.read_exact_at(bytes, begin).map_err(|error| self.unreadable(error))
    }

    /// Reads elements of a tensor of floating-point numbers or i8, from index `first` on, as f32.
    ///
    /// # Errors
    /// The file has become unreadable or shorter.
    pub(super) fn read(&self, name: &str, first: usize, numbers: &mut [[u8; 4]]) -> Result<(), WeightsError> {
        let info = self.tensors.info(name).expect("the tensor exists");
        let width = number::width(info.dtype).expect("a floating-point type");
        let opened = if self.file.is_none() { Some(self.reopen()?) } else { None };
        let file = self.file.as_ref().or(opened.as_ref()).expect("it is open, or was opened");
        let begin = self.begin + info.data_offsets.0 as u64 + (first * width) as u64;
        let read = |part: &mut [u8], at| file.read_exact_at(part, at).map_err(|error| self.unreadable(error));
        if info.dtype == Dtype::F32 {
            read(numbers.as_flattened_mut(), begin)?;
            // From little-endian to native byte order.
            numbers.iter_mut().for_each(|number| *number = f32::from_le_bytes(*number).to_ne_bytes());
            return Ok(());
        }
        let mut piece = [0; PIECE];
        for (index, numbers) in numbers.chunks_mut(PIECE / width).enumerate() {
            let piece = &mut piece[..numbers.len() * width];
            read(piece, begin + (index * PIECE) as u64)?;
            for (number, stored) in numbers.iter_mut().zip(piece.chunks_exact(width)) {
                *number = number::to_f32(info.dtype, stored).to_ne_bytes();
            }
        }
        Ok(())
    }

    /// Opens the file whose header was read.
    fn reopen(&self) -> Result<File, WeightsError> {
        let file = regular::open(&self.path).map_err(|error| self.unreadable(error))?;
        let found = file.metadata().map_err(|error| self.unreadable(error))?;
        if Version::of(&found) == self.version {
            Ok(file)
        } else {
            Err(WeightsError::Changed { path: self.path.clone() })
        }
    }

    pub(super) fn unreadable(&self, error: io::Error) -> WeightsError {
        WeightsError::Unreadable { path: self.path.clone(), error }
    }

    /// Checks that all tensors have the sizes of their types and fill the data, of this many bytes.
    fn check_sizes(&self, bytes: u64) -> Result<(), String> {
        for (name, info) in self.tensors.tensors() {
            let elements = info.shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
            let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
            let (start, end) = info.data_offsets;
            if end as u64 > bytes || bits.map(|bits| bits.div_ceil(8)) != end.checked_sub(start) {
                let found = self.tensor(&name);
                return Err(format!("the data of `{}`, {found}, is incomplete", brief::line(&name)));
            }
        }
        // The header's tensors follow each other, as its reader has checked.
        let ends = self.tensors.tensors().into_values().map(|info| info.data_offsets.1 as u64);
        match bytes - ends.max().unwrap_or(0) {
            0 => Ok(()),
            more => Err(format!("its last {more} bytes belong to no tensor")),
        }
    }
}
