//! One safetensors file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{WeightsError, number};
use base::{brief, regular};

/// As the format has it.
const LONGEST_HEADER: u64 = 100_000_000;

/// Bytes of the file that are read at a time where its numbers become others: what the process has resident is the run's.
const PIECE: usize = 16 << 10;

/// A file whose header has been read.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    tensors: Metadata,
    /// Where behind the header the numbers begin.
    begin: u64,
}

/// What a file says of a tensor: `f32[256, 128]`.
pub(super) struct Found {
    pub(super) dtype: Dtype,
    pub(super) dims: Vec<usize>,
}

impl Found {
    /// Whether a parameter can be made of it.
    pub(super) fn is_numbers(&self) -> bool {
        number::width(self.dtype).is_some()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        write!(f, "{}[{}]", format!("{:?}", self.dtype).to_lowercase(), dims.join(", "))
    }
}

impl TensorFile {
    /// Reads what the file says it holds.
    ///
    /// # Errors
    /// It cannot be read, or is no file of tensors.
    pub(super) fn open(path: &Path) -> Result<TensorFile, WeightsError> {
        let unreadable = |error| WeightsError::Unreadable { path: path.to_owned(), error };
        let broken = |problem: String| WeightsError::NotTensors { path: path.to_owned(), problem };
        let mut file = regular::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        if bytes < length.len() as u64 {
            return Err(broken(format!("it holds {bytes} bytes")));
        }
        file.read_exact(&mut length).map_err(unreadable)?;
        let length = u64::from_le_bytes(length);
        let begin = length.saturating_add(8);
        if length > LONGEST_HEADER || begin > bytes {
            return Err(broken(format!("its header would have {length} bytes, and the file has {bytes}")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let tensors: Metadata =
            serde_json::from_slice(&header).map_err(|error| broken(format!("its header: {error}")))?;
        let file = TensorFile { path: path.to_owned(), file, tensors, begin };
        file.lie_within(bytes - begin).map_err(broken)?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Of all its tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.tensors.offset_keys().into_iter()
    }

    /// Of a tensor that is there.
    pub(super) fn tensor(&self, name: &str) -> Found {
        let info = self.tensors.info(name).expect("a tensor that is there");
        Found { dtype: info.dtype, dims: info.shape.clone() }
    }

    /// The numbers of a tensor that numbers can be made of, from this one on, as f32.
    ///
    /// # Errors
    /// The file has become unreadable, or shorter.
    pub(super) fn read(&self, name: &str, first: usize, numbers: &mut [[u8; 4]]) -> Result<(), WeightsError> {
        let info = self.tensors.info(name).expect("a tensor that is there");
        let width = number::width(info.dtype).expect("numbers");
        let begin = self.begin + info.data_offsets.0 as u64 + (first * width) as u64;
        let read =
            |part: &mut [u8], at| self.file.read_exact_at(part, at).map_err(|error| self.unreadable(error));
        if info.dtype == Dtype::F32 {
            read(numbers.as_flattened_mut(), begin)?;
            // Little-endian in the file, as the machine has them in memory.
            numbers.iter_mut().for_each(|number| *number = f32::from_le_bytes(*number).to_ne_bytes());
            return Ok(());
        }
        let mut piece = [0; PIECE];
        for (index, numbers) in numbers.chunks_mut(PIECE / width).enumerate() {
            let piece = &mut piece[..numbers.len() * width];
            read(piece, begin + (index * PIECE) as u64)?;
            for (number, stored) in numbers.iter_mut().zip(piece.chunks_exact(width)) {
                *number = number::widened(info.dtype, stored).to_ne_bytes();
            }
        }
        Ok(())
    }

    pub(super) fn unreadable(&self, error: io::Error) -> WeightsError {
        WeightsError::Unreadable { path: self.path.clone(), error }
    }

    /// All tensors, in this many bytes behind the header.
    fn lie_within(&self, bytes: u64) -> Result<(), String> {
        for (name, info) in self.tensors.tensors() {
            let elements = info.shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
            let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
            let (start, end) = info.data_offsets;
            if end as u64 > bytes || bits.map(|bits| bits.div_ceil(8)) != end.checked_sub(start) {
                let found = self.tensor(&name);
                return Err(format!("`{}`, {found}, is not all there", brief::line(&name)));
            }
        }
        Ok(())
    }
}
