//! A model's parameters in a safetensors file, such as a dump leaves: looked at as a whole, and read a piece at a time.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::DigestCache;
use crate::ops::{Shape, TensorType};
use crate::{brief, regular};

/// As the format has it.
const LONGEST_HEADER: u64 = 100_000_000;

/// Bytes of the file that are read at a time where its numbers become others: what the process has resident is the run's.
const PIECE: usize = 16 << 10;

/// A parameter that a model needs, by name.
pub type Needed = (String, Shape);

/// A file whose header has been read.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    file: File,
    tensors: Metadata,
    /// Where behind the header the numbers begin.
    begin: u64,
}

/// Why a model cannot start from a file.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} is no safetensors file: {problem}", path.display())]
    NotTensors { path: PathBuf, problem: String },
    #[error("{} has no `{tensor}`, which the model needs as {needed}", path.display())]
    Missing { path: PathBuf, tensor: String, needed: TensorType },
    #[error("{} has `{tensor}` as {found}; the model needs it as {needed}", path.display())]
    Other { path: PathBuf, tensor: String, found: String, needed: TensorType },
    #[error("{} has `{}`, which the model does not", path.display(), brief::line(tensor))]
    Unknown { path: PathBuf, tensor: String },
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
            WeightsError::NotTensors { .. } => "name what `sweep --dump` wrote, such as final.safetensors",
            WeightsError::Other { found, .. }
                if !["f32[", "bf16[", "f16["].iter().any(|readable| found.starts_with(readable)) =>
            {
                "write it as f32, or in 16 bits as bf16 or f16"
            }
            WeightsError::Missing { .. } | WeightsError::Other { .. } | WeightsError::Unknown { .. } => {
                "name a file that a model of the same sizes left, or give the model the sizes of the file"
            }
        }
    }
}

impl Weights {
    /// Reads what the file says it holds.
    ///
    /// # Errors
    /// It cannot be read, or is no file of tensors.
    pub fn open(path: &Path) -> Result<Weights, WeightsError> {
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
        let weights = Weights { path: path.to_owned(), file, tensors, begin };
        weights.lie_within(bytes - begin).map_err(broken)?;
        Ok(weights)
    }

    /// Names what it holds, wherever it lies; what was digested before is not read again.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn digest(&self, cache: &mut DigestCache) -> Result<String, WeightsError> {
        let digest = cache.of_file(&self.path).map_err(|error| self.unreadable(error))?;
        Ok(digest.sha256)
    }

    /// Whether it has what a model needs, and no more: what is left over would be of another model.
    ///
    /// # Errors
    /// The first parameter that it lacks, or has otherwise, or too much.
    pub fn check(&self, needed: &[Needed]) -> Result<(), WeightsError> {
        for (tensor, shape) in needed {
            let (path, tensor, needed) = (self.path.clone(), tensor.clone(), TensorType::f32(shape.dims()));
            let Some(info) = self.tensors.info(&tensor) else {
                return Err(WeightsError::Missing { path, tensor, needed });
            };
            if width(info.dtype).is_none() || info.shape != shape.dims() {
                return Err(WeightsError::Other { path, tensor, found: described(info), needed });
            }
        }
        let needed: HashSet<&str> = needed.iter().map(|(tensor, _)| tensor.as_str()).collect();
        let known = |name: &String| needed.contains(name.as_str());
        match self.tensors.offset_keys().into_iter().find(|name| !known(name)) {
            Some(tensor) => Err(WeightsError::Unknown { path: self.path.clone(), tensor }),
            None => Ok(()),
        }
    }

    /// The numbers of a tensor that was checked, from this one on, as f32.
    ///
    /// # Errors
    /// The file has become unreadable, or shorter.
    pub fn read(&self, tensor: &str, first: u64, numbers: &mut [[u8; 4]]) -> Result<(), WeightsError> {
        let info = self.tensors.info(tensor).expect("a tensor that was checked");
        let width = width(info.dtype).expect("a type that was checked");
        let begin = self.begin + info.data_offsets.0 as u64 + first * width as u64;
        let read =
            |part: &mut [u8], at| self.file.read_exact_at(part, at).map_err(|error| self.unreadable(error));
        if info.dtype == Dtype::F32 {
            read(numbers.as_flattened_mut(), begin)?;
            // Little-endian in the file, as the machine has them in memory.
            numbers.iter_mut().for_each(|number| *number = f32::from_le_bytes(*number).to_ne_bytes());
            return Ok(());
        }
        let widen = if info.dtype == Dtype::BF16 { of_bf16 } else { of_f16 };
        let mut piece = [[0; 2]; PIECE / 2];
        for (index, numbers) in numbers.chunks_mut(piece.len()).enumerate() {
            let piece = &mut piece[..numbers.len()];
            read(piece.as_flattened_mut(), begin + (index * PIECE) as u64)?;
            for (number, half) in numbers.iter_mut().zip(piece) {
                *number = widen(u16::from_le_bytes(*half)).to_ne_bytes();
            }
        }
        Ok(())
    }

    /// All tensors, in this many bytes behind the header.
    fn lie_within(&self, bytes: u64) -> Result<(), String> {
        for (name, info) in self.tensors.tensors() {
            let elements = info.shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
            let bits = elements.and_then(|elements| elements.checked_mul(info.dtype.bitsize()));
            let (start, end) = info.data_offsets;
            if end as u64 > bytes || bits.map(|bits| bits.div_ceil(8)) != end.checked_sub(start) {
                return Err(format!("`{}`, {}, is not all there", brief::line(&name), described(info)));
            }
        }
        Ok(())
    }

    fn unreadable(&self, error: io::Error) -> WeightsError {
        WeightsError::Unreadable { path: self.path.clone(), error }
    }
}

/// What makes data and weights those that a run was planned with: the data's own digest where there are no others.
pub fn digest_of_both(data: &str, weights: Option<&str>) -> String {
    weights.map_or_else(|| data.to_owned(), |weights| format!("{data} {weights}"))
}

/// Bytes of a number that a parameter can be made of.
fn width(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => Some(4),
        Dtype::BF16 | Dtype::F16 => Some(2),
        _ => None,
    }
}

/// `f32[256, 128]`
fn described(info: &TensorInfo) -> String {
    let dims: Vec<String> = info.shape.iter().map(usize::to_string).collect();
    format!("{}[{}]", format!("{:?}", info.dtype).to_lowercase(), dims.join(", "))
}

fn of_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

fn of_f16(bits: u16) -> f32 {
    let (exponent, significand) = (bits >> 10 & 0x1F, f32::from(bits & 0x3FF));
    let magnitude = match exponent {
        0 => significand * 2f32.powi(-24),
        0x1F if significand > 0.0 => f32::NAN,
        0x1F => f32::INFINITY,
        _ => (1024.0 + significand) * 2f32.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::{TensorView, serialize};

    use super::*;

    fn written(folder: &Path, tensors: &[(&str, Dtype, &[usize], &[u8])]) -> PathBuf {
        let path = folder.join("a.safetensors");
        let views = tensors
            .iter()
            .map(|&(name, dtype, shape, data)| (name, TensorView::new(dtype, shape.to_vec(), data).unwrap()));
        std::fs::write(&path, serialize(views, None).unwrap()).unwrap();
        path
    }

    /// A name and dimensions.
    type Entry<'a> = (&'a str, &'a [usize]);

    fn needed(tensors: &[Entry]) -> Vec<Needed> {
        tensors.iter().map(|(name, dims)| ((*name).to_owned(), Shape::new(dims))).collect()
    }

    #[test]
    fn numbers_are_read_from_anywhere_as_f32() {
        let folder = tempfile::tempdir().unwrap();
        let count = 3 * PIECE / 2 + 5;
        let numbers: Vec<f32> = (0..count).map(|number| (number % 256) as f32 - 100.0).collect();
        let f32s: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let bf16s: Vec<u8> =
            numbers.iter().flat_map(|number| ((number.to_bits() >> 16) as u16).to_le_bytes()).collect();
        // 1, -2, the least subnormal and the greatest number.
        let f16s: Vec<u8> =
            [0x3C00u16, 0xC000, 0x0001, 0x7BFF].iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let tensors: [(&str, Dtype, &[usize], &[u8]); 3] = [
            ("a", Dtype::F32, &[count], &f32s),
            ("b", Dtype::BF16, &[count], &bf16s),
            ("c", Dtype::F16, &[2, 2], &f16s),
        ];
        let weights = Weights::open(&written(folder.path(), &tensors)).unwrap();
        weights.check(&needed(&[("a", &[count]), ("b", &[count]), ("c", &[2, 2])])).unwrap();
        let read = |tensor, first, count| {
            let mut found = vec![[0; 4]; count];
            weights.read(tensor, first, &mut found).unwrap();
            found.into_iter().map(f32::from_ne_bytes).collect::<Vec<f32>>()
        };
        for tensor in ["a", "b"] {
            assert_eq!(read(tensor, 0, count), numbers, "{tensor}");
            assert_eq!(read(tensor, 7, count - 9), numbers[7..count - 2], "{tensor}");
        }
        assert_eq!(read("c", 0, 4), [1.0, -2.0, 2f32.powi(-24), 65504.0]);
        assert!(of_f16(0x7C01).is_nan() && of_f16(0xFC00) == f32::NEG_INFINITY);
    }

    #[test]
    fn what_is_missing_or_otherwise_or_too_much_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let tensors: [(&str, Dtype, &[usize], &[u8]); 2] =
            [("a", Dtype::F32, &[2, 1], &[0; 8]), ("b", Dtype::I32, &[1], &[0; 4])];
        let path = written(folder.path(), &tensors);
        let weights = Weights::open(&path).unwrap();
        let said = |tensors: &[Entry]| {
            let error = weights.check(&needed(tensors)).unwrap_err();
            error.to_string().replace(&path.display().to_string(), "a.safetensors")
        };
        let cases: [(&[Entry], &str); 4] = [
            (&[("x", &[3])], "a.safetensors has no `x`, which the model needs as f32[3]"),
            (&[("a", &[1, 2])], "a.safetensors has `a` as f32[2, 1]; the model needs it as f32[1, 2]"),
            (&[("b", &[1])], "a.safetensors has `b` as i32[1]; the model needs it as f32[1]"),
            (&[("a", &[2, 1])], "a.safetensors has `b`, which the model does not"),
        ];
        for (tensors, expected) in cases {
            assert_eq!(said(tensors), expected);
        }
    }

    #[test]
    fn a_file_that_is_cut_anywhere_is_no_file_of_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path(), &[("a", Dtype::F32, &[2], &[0; 8])]);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let found = Weights::open(&path);
            assert!(matches!(found, Err(WeightsError::NotTensors { .. })), "{length}: {found:?}");
        }
        let missing = Weights::open(&folder.path().join("none"));
        assert!(matches!(missing, Err(WeightsError::Unreadable { .. })));
    }
}
