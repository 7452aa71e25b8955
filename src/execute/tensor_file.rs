//! Tensors on their way into a safetensors file, a piece at a time: no tensor is ever in memory whole.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use ops::{DType, TensorType};

/// The data begins at a multiple of this many bytes, as the format's own writer has it.
const ALIGNMENT: usize = 8;

/// A tensor of a file. It may have one dimension more than any value of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) dims: Vec<usize>,
}

impl Entry {
    /// Codes of half a byte, which the format does not have, go as the bytes that they lie in.
    pub(super) fn new(name: String, ty: TensorType) -> Entry {
        match ty.dtype {
            DType::U4 => Entry { name, dtype: DType::U8, dims: vec![ty.bytes() as usize] },
            dtype => Entry { name, dtype, dims: ty.shape.dims().to_vec() },
        }
    }

    fn bytes(&self) -> u64 {
        self.dtype.bytes_of(self.dims.iter().product())
    }
}

/// A file whose header is written and whose data is awaited.
pub(super) struct TensorFile {
    file: BufWriter<File>,
    /// Bytes of the tensors that the header names and the file lacks.
    missing: u64,
}

impl TensorFile {
    /// Begins a file of tensors with these names and types, whose elements will come in this order.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn create(path: &Path, tensors: &[Entry]) -> io::Result<TensorFile> {
        let header = header(tensors)?;
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let missing = tensors.iter().map(Entry::bytes).sum();
        Ok(TensorFile { file, missing })
    }

    /// Writes the next elements: little-endian numbers, as the format has them and the devices of all machines
    /// that this program is built for.
    ///
    /// # Errors
    /// The file cannot be written, or was promised fewer.
    pub(super) fn write(&mut self, elements: &[u8]) -> io::Result<()> {
        let missing = self.missing.checked_sub(elements.len() as u64);
        self.missing = missing.ok_or_else(|| io::Error::other("more elements than its header says"))?;
        self.file.write_all(elements)
    }

    /// # Errors
    /// The file cannot be written, or was promised more.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.missing > 0 {
            return Err(io::Error::other(format!("{} bytes of its tensors never came", self.missing)));
        }
        self.file.flush()
    }
}

fn header(tensors: &[Entry]) -> io::Result<Vec<u8>> {
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
    fn pieces_become_tensors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let tensors = [
            Entry::new("z".to_owned(), TensorType::f32(&[2, 3])),
            Entry { name: "a".to_owned(), dtype: DType::I32, dims: vec![1, 1, 1, 1, 2] },
            Entry::new("m".to_owned(), TensorType::f32(&[1])),
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
    fn a_file_holds_what_its_header_says_or_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let tensors = [Entry::new("a".to_owned(), TensorType::f32(&[2]))];
        let create = || TensorFile::create(&folder.path().join("a.safetensors"), &tensors).unwrap();
        let mut file = create();
        file.write(&[0; 4]).unwrap();
        assert_eq!(file.finish().unwrap_err().to_string(), "4 bytes of its tensors never came");
        assert_eq!(create().write(&[0; 12]).unwrap_err().to_string(), "more elements than its header says");
    }
}
