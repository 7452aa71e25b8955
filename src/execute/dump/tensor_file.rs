//! Writes a safetensors file in pieces: no tensor is ever in memory as a whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use ops::{DType, TensorType};

/// The data begins at a multiple of this many bytes, as in files of the format's own writer.
const ALIGNMENT: usize = 8;

/// Name, dtype and shape of a tensor in a file. It may have one dimension more than a program's values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorHeader {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<usize>,
}

impl TensorHeader {
    /// Describes a value. Four-bit codes, which the format does not have, are written as bytes.
    pub(crate) fn new(name: String, ty: TensorType) -> TensorHeader {
        match ty.dtype {
            DType::U4 => TensorHeader { name, dtype: DType::U8, dims: vec![ty.bytes() as usize] },
            dtype => TensorHeader { name, dtype, dims: ty.shape.dims().to_vec() },
        }
    }

    fn bytes(&self) -> u64 {
        self.dtype.bytes_of(self.dims.iter().product())
    }
}

/// A file whose header has been written.
pub(crate) struct TensorFile {
    file: BufWriter<File>,
    /// Bytes of tensors that are still to be written.
    missing: u64,
}

impl TensorFile {
    /// Creates a file and writes its header. The tensors' elements must be written in this order.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn create(path: &Path, tensors: &[TensorHeader]) -> io::Result<TensorFile> {
        let header = header(tensors)?;
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let missing = tensors.iter().map(TensorHeader::bytes).sum();
        Ok(TensorFile { file, missing })
    }

    /// Writes the next elements: little-endian numbers, as in the format and on all machines that this program is built
    /// for.
    ///
    /// # Errors
    /// The file cannot be written, or its header declares fewer elements.
    pub(crate) fn write(&mut self, elements: &[u8]) -> io::Result<()> {
        let missing = self.missing.checked_sub(elements.len() as u64);
        self.missing = missing.ok_or_else(|| io::Error::other("more elements than the header declares"))?;
        self.file.write_all(elements)
    }

    /// # Errors
    /// The file cannot be written, or its header declares more elements.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.missing > 0 {
            return Err(io::Error::other(format!("{} bytes of its tensors were not written", self.missing)));
        }
        self.file.flush()
    }
}

fn header(tensors: &[TensorHeader]) -> io::Result<Vec<u8>> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for entry in tensors {
        let dtype = match entry.dtype {
            DType::F32 => Dtype::F32,
            DType::BF16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            DType::I32 => Dtype::I32,
            DType::U16 => Dtype::U16,
            DType::U8 | DType::U4 => Dtype::U8,
        };
        let start = end;
        end += entry.bytes() as usize;
        let info = TensorInfo { dtype, shape: entry.dims.clone(), data_offsets: (start, end) };
        infos.push((entry.name.clone(), info));
    }
    let metadata = Metadata::new(None, infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
    Ok(header)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn tensors_written_in_pieces_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let tensors = [
            TensorHeader::new("z".to_owned(), TensorType::f32(&[2, 3])),
            TensorHeader { name: "a".to_owned(), dtype: DType::I32, dims: vec![1, 1, 1, 1, 2] },
            TensorHeader::new("m".to_owned(), TensorType::f32(&[1])),
        ];
        let bytes: Vec<u8> = (0..36).collect();
        let mut file = TensorFile::create(&path, &tensors).unwrap();
        for piece in [0..10, 10..30, 30..36] {
            file.write(&bytes[piece]).unwrap();
        }
        file.finish().unwrap();

        let written = std::fs::read(&path).unwrap();
        let read = SafeTensors::deserialize(&written).unwrap();
        assert_eq!(read.len(), 3);
        let expected = [("z", Dtype::F32, 0..24), ("a", Dtype::I32, 24..32), ("m", Dtype::F32, 32..36)];
        for ((name, dtype, range), entry) in expected.into_iter().zip(&tensors) {
            let tensor = read.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &entry.dims[..]), "{name}");
            assert_eq!(tensor.data(), &bytes[range], "{name}");
        }
    }

    #[test]
    fn elements_must_match_the_header() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [TensorHeader::new("a".to_owned(), TensorType::f32(&[2]))];
        let create = || TensorFile::create(&folder.path().join("a.safetensors"), &tensors).unwrap();
        let mut file = create();
        file.write(&[0; 4]).unwrap();
        assert_eq!(file.finish().unwrap_err().to_string(), "4 bytes of its tensors were not written");
        assert_eq!(
            create().write(&[0; 12]).unwrap_err().to_string(),
            "more elements than the header declares"
        );
    }
}
