//! Reads values from the device; for tests, also writes them.

use super::Engine;
use device::Region;
use memory::Failure;
use ops::ValueId;

/// Bytes of one read from the device. Tensors are read in pieces: a whole copy in host memory, outside the pools, would
/// raise the resident set, which the external memory reading would report as uncounted.
pub(super) const PIECE: usize = 64 << 10;

impl Engine<'_> {
    /// Passes the bytes of a value to `take`, in order and in pieces.
    ///
    /// # Errors
    /// A device that fails, or an error of `take`.
    pub(crate) fn read<E: From<Failure>>(
        &mut self,
        id: ValueId,
        take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let region = self.manager.tensor(id).region();
        self.read_in_pieces(region, &mut vec![0; PIECE], take)
    }

    /// The memory of `count` elements of a value, beginning with element `first`.
    pub(super) fn elements_region(&self, id: ValueId, first: usize, count: usize) -> Region {
        let tensor = self.manager.tensor(id);
        let dtype = tensor.ty.dtype;
        let (offset, bytes) = (tensor.offset + dtype.bytes_of(first), dtype.bytes_of(count));
        Region { buffer: tensor.buffer, offset, bytes }
    }

    /// Reads `count` elements of a value, beginning with element `first`.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn read_elements(
        &mut self,
        id: ValueId,
        first: usize,
        count: usize,
    ) -> Result<Vec<u8>, Failure> {
        let region = self.elements_region(id, first, count);
        let mut bytes = vec![0; region.bytes as usize];
        Ok(self.manager.backing.device.read(region, &mut bytes).map(|()| bytes)?)
    }

    /// Overwrites a value.
    #[cfg(test)]
    pub(crate) fn write_value(&mut self, id: ValueId, numbers: &[f32]) -> Result<(), Failure> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let region = self.manager.tensor(id).region();
        Ok(self.manager.backing.device.write(region, &bytes)?)
    }

    pub(super) fn read_in_pieces<E: From<Failure>>(
        &mut self,
        region: Region,
        piece: &mut [u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for start in (0..region.bytes).step_by(piece.len()) {
            let bytes = (region.bytes - start).min(piece.len() as u64);
            let part = Region { buffer: region.buffer, offset: region.offset + start, bytes };
            let piece = &mut piece[..bytes as usize];
            self.manager.backing.device.read(part, piece).map_err(Failure::from)?;
            take(piece)?;
        }
        Ok(())
    }

    pub(super) fn read_number(&mut self, id: ValueId) -> Result<f32, Failure> {
        self.read_numbers(id).map(|[number]| number)
    }

    pub(super) fn read_numbers<const N: usize>(&mut self, id: ValueId) -> Result<[f32; N], Failure> {
        let mut bytes = [[0; size_of::<f32>()]; N];
        let region = self.manager.tensor(id).region();
        self.manager.backing.device.read(region, bytes.as_flattened_mut())?;
        Ok(bytes.map(f32::from_ne_bytes))
    }
}
