//! Numbers of samples in a file, each sample at the same distance from the one before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;

use crate::DataError;
use crate::digest::Version;
use crate::weights::f16_to_f32;
use base::regular;

/// Bytes to read at a time; small, since resident memory is measured as the run's.
const PIECE: usize = 4 << 10;

/// The type of a stored number, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberType {
    U8,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl NumberType {
    /// The supported types, for help.
    pub(crate) const NAMES: &str = "u8, i32, i64, f16, bf16, f32 or f64";

    pub(crate) fn of(dtype: Dtype) -> Option<NumberType> {
        Some(match dtype {
            Dtype::U8 => NumberType::U8,
            Dtype::I32 => NumberType::I32,
            Dtype::I64 => NumberType::I64,
            Dtype::F16 => NumberType::F16,
            Dtype::BF16 => NumberType::BF16,
            Dtype::F32 => NumberType::F32,
            Dtype::F64 => NumberType::F64,
            _ => return None,
        })
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            NumberType::U8 => 1,
            NumberType::F16 | NumberType::BF16 => 2,
            NumberType::I32 | NumberType::F32 => 4,
            NumberType::I64 | NumberType::F64 => 8,
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, NumberType::U8 | NumberType::I32 | NumberType::I64)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            NumberType::U8 => "u8",
            NumberType::I32 => "i32",
            NumberType::I64 => "i64",
            NumberType::F16 => "f16",
            NumberType::BF16 => "bf16",
            NumberType::F32 => "f32",
            NumberType::F64 => "f64",
        }
    }

    /// Exact, except that f64 and large integers are rounded.
    fn to_f32(self, bytes: &[u8]) -> f32 {
        let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
        match self {
            NumberType::U8 | NumberType::I32 | NumberType::I64 => self.to_integer(bytes) as f32,
            NumberType::F16 => f16_to_f32(half()),
            NumberType::BF16 => f32::from_bits(u32::from(half()) << 16),
            NumberType::F32 => f32::from_le_bytes(std::array::from_fn(|byte| bytes[byte])),
            NumberType::F64 => f64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])) as f32,
        }
    }

    /// An integer; 0 of other types, which `check` refuses as classes.
    fn to_integer(self, bytes: &[u8]) -> i64 {
        match self {
            NumberType::U8 => i64::from(bytes[0]),
            NumberType::I32 => i64::from(i32::from_le_bytes(std::array::from_fn(|byte| bytes[byte]))),
            NumberType::I64 => i64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])),
            _ => 0,
        }
    }
}

/// An open file of samples.
#[derive(Debug)]
pub(crate) struct SampleFile {
    path: PathBuf,
    file: File,
    /// When it was opened.
    version: Version,
}

impl SampleFile {
    pub(crate) fn new(path: &Path, (file, version): (File, Version)) -> SampleFile {
        SampleFile { path: path.to_owned(), file, version }
    }

    /// Opens a file; returns it with its length.
    ///
    /// # Errors
    /// It is unreadable.
    pub(crate) fn open(path: &Path) -> Result<(SampleFile, u64), DataError> {
        let unreadable = |error| DataError::Unreadable { path: path.to_owned(), error };
        let file = regular::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        Ok((SampleFile::new(path, (file, Version::of(&found))), found.len()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn version(&self) -> &Version {
        &self.version
    }

    /// # Errors
    /// The file has become unreadable or shorter.
    pub(crate) fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<(), DataError> {
        self.file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => DataError::Changed { path: self.path.clone() },
            _ => self.unreadable(error),
        })
    }

    /// Checks that the file is as it was opened.
    fn check(&self) -> Result<(), DataError> {
        let now = self.file.metadata().map_err(|error| self.unreadable(error))?;
        match Version::of(&now) == self.version {
            true => Ok(()),
            false => Err(DataError::Changed { path: self.path.clone() }),
        }
    }

    fn unreadable(&self, error: io::Error) -> DataError {
        DataError::Unreadable { path: self.path.clone(), error }
    }
}

/// Numbers of samples in a file, which are read on demand.
#[derive(Clone, Debug)]
pub(crate) struct StoredSamples {
    pub(crate) file: Arc<SampleFile>,
    /// Offset of the first sample.
    pub(crate) begin: u64,
    /// Bytes from the start of a sample to that of the next.
    pub(crate) stride: u64,
    pub(crate) number: NumberType,
    /// The shape of a sample.
    pub(crate) dims: Vec<usize>,
    pub(crate) count: u64,
}

/// A class that is out of range.
pub(crate) struct WrongClass {
    pub(crate) sample: u64,
    /// Its offset in the file.
    pub(crate) byte: u64,
    pub(crate) class: i64,
}

impl StoredSamples {
    /// Numbers per sample.
    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The type of a sample: `f32[3, 32, 32]`.
    pub(crate) fn describe(&self) -> String {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        format!("{}[{}]", self.number.name(), dims.join(", "))
    }

    /// Reads bytes of a sample, from an offset in it on.
    ///
    /// # Errors
    /// The file has become unreadable, or has changed.
    pub(crate) fn read_bytes(&self, sample: u64, first: usize, bytes: &mut [u8]) -> Result<(), DataError> {
        self.file.check()?;
        self.file.read_at(bytes, self.begin + sample * self.stride + first as u64)
    }

    /// Passes the numbers of a sample to `each`, with the index of the first, a piece at a time.
    fn pieces(&self, sample: u64, mut each: impl FnMut(usize, &[u8])) -> Result<(), DataError> {
        self.file.check()?;
        let (width, elements) = (self.number.bytes(), self.elements());
        let begin = self.begin + sample * self.stride;
        let mut piece = [0; PIECE];
        for first in (0..elements).step_by(PIECE / width) {
            let piece = &mut piece[..(elements - first).min(PIECE / width) * width];
            self.file.read_at(piece, begin + (first * width) as u64)?;
            each(first, piece);
        }
        Ok(())
    }

    /// Reads a sample as f32, each number times `scale`.
    ///
    /// # Errors
    /// The file has become unreadable, or has changed.
    pub(crate) fn read_numbers(
        &self,
        sample: u64,
        scale: f32,
        numbers: &mut [[u8; 4]],
    ) -> Result<(), DataError> {
        let width = self.number.bytes();
        self.pieces(sample, |first, piece| {
            for (number, stored) in numbers[first..].iter_mut().zip(piece.chunks_exact(width)) {
                *number = (self.number.to_f32(stored) * scale).to_ne_bytes();
            }
        })
    }

    /// Passes the classes of a sample, which are integers, to `put`, a piece at a time.
    ///
    /// # Errors
    /// Those of [`StoredSamples::read_numbers`].
    pub(crate) fn read_classes(
        &self,
        sample: u64,
        mut put: impl FnMut(usize, &mut dyn Iterator<Item = i64>),
    ) -> Result<(), DataError> {
        let (number, width) = (self.number, self.number.bytes());
        self.pieces(sample, |first, piece| {
            put(first, &mut piece.chunks_exact(width).map(|stored| number.to_integer(stored)));
        })
    }

    /// As one sample, if nothing is between samples.
    fn joined(&self) -> StoredSamples {
        let elements = self.elements();
        if self.stride != (elements * self.number.bytes()) as u64 {
            return self.clone();
        }
        let elements = elements * self.count as usize;
        let stride = (elements * self.number.bytes()) as u64;
        StoredSamples { dims: vec![elements], count: 1, stride, ..self.clone() }
    }

    /// The largest class; `u32::MAX` if any is negative or exceeds an i32.
    ///
    /// # Errors
    /// Those of [`StoredSamples::read_numbers`].
    pub(crate) fn largest_class(&self) -> Result<u32, DataError> {
        let all = self.joined();
        let mut largest = 0;
        for sample in 0..all.count {
            all.read_classes(sample, |_, classes| {
                let class = |class| i32::try_from(class).ok().and_then(|class| u32::try_from(class).ok());
                largest = classes.map(|found| class(found).unwrap_or(u32::MAX)).fold(largest, u32::max);
            })?;
        }
        Ok(largest)
    }

    /// The first class that is not in `0..below`.
    ///
    /// # Errors
    /// Those of [`StoredSamples::read_numbers`].
    pub(crate) fn wrong_class(&self, below: usize) -> Result<Option<WrongClass>, DataError> {
        for sample in 0..self.count {
            let mut wrong = None;
            self.read_classes(sample, |first, classes| {
                let found = classes.enumerate().find(|(_, class)| !(0..below as i64).contains(class));
                let place = |at: usize| {
                    self.begin + sample * self.stride + ((first + at) * self.number.bytes()) as u64
                };
                let found = found.map(|(at, class)| WrongClass { sample, byte: place(at), class });
                wrong = wrong.take().or(found);
            })?;
            if wrong.is_some() {
                return Ok(wrong);
            }
        }
        Ok(None)
    }
}
