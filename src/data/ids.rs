//! Ids of a sample, in the type that they are loaded in.

use std::ops::Range;

use ops::DType;

/// The target of padding tokens, which the loss ignores.
pub(super) const MASKED: i32 = -1;

/// Memory of ids in native byte order, in the narrowest type that holds them all.
#[derive(Debug)]
pub(super) enum Ids<'a> {
    U8(&'a mut [u8]),
    U16(&'a mut [[u8; 2]]),
    I32(&'a mut [[u8; 4]]),
}

impl<'a> Ids<'a> {
    /// Panics for types other than u8, u16 and i32.
    pub(super) fn of(dtype: DType, memory: &'a mut [u8]) -> Ids<'a> {
        match dtype {
            DType::U8 => Ids::U8(memory),
            DType::U16 => Ids::U16(memory.as_chunks_mut().0),
            DType::I32 => Ids::I32(memory.as_chunks_mut().0),
            other => panic!("ids are not loaded as {other}"),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Ids::U8(memory) => memory.len(),
            Ids::U16(memory) => memory.len(),
            Ids::I32(memory) => memory.len(),
        }
    }

    pub(super) fn split_at(self, index: usize) -> (Ids<'a>, Ids<'a>) {
        match self {
            Ids::U8(memory) => {
                let (before, after) = memory.split_at_mut(index);
                (Ids::U8(before), Ids::U8(after))
            }
            Ids::U16(memory) => {
                let (before, after) = memory.split_at_mut(index);
                (Ids::U16(before), Ids::U16(after))
            }
            Ids::I32(memory) => {
                let (before, after) = memory.split_at_mut(index);
                (Ids::I32(before), Ids::I32(after))
            }
        }
    }

    /// Stores numbers, until either side ends. They are known to fit the type.
    pub(super) fn put(&mut self, numbers: impl Iterator<Item = u32>) {
        match self {
            Ids::U8(memory) => memory.iter_mut().zip(numbers).for_each(|(id, number)| *id = number as u8),
            Ids::U16(memory) => {
                memory.iter_mut().zip(numbers).for_each(|(id, number)| *id = (number as u16).to_ne_bytes());
            }
            Ids::I32(memory) => {
                memory.iter_mut().zip(numbers).for_each(|(id, number)| *id = number.to_ne_bytes());
            }
        }
    }

    /// Masks these elements: -1, or the largest number of an unsigned type.
    pub(super) fn mask(&mut self, elements: Range<usize>) {
        let (_, mut masked) = self.reborrow().split_at(elements.start);
        masked.put(std::iter::repeat_n(MASKED.cast_unsigned(), elements.len()));
    }

    /// The same memory, for a shorter time.
    pub(super) fn reborrow(&mut self) -> Ids<'_> {
        match self {
            Ids::U8(memory) => Ids::U8(memory),
            Ids::U16(memory) => Ids::U16(memory),
            Ids::I32(memory) => Ids::I32(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stored_in_their_type() {
        for (dtype, largest) in [(DType::U8, 254), (DType::U16, 65_534), (DType::I32, 1 << 30)] {
            let mut memory = vec![7; 4 * dtype.bytes() as usize];
            let (mut two, mut others) = Ids::of(dtype, &mut memory).split_at(2);
            assert_eq!((two.len(), others.len()), (2, 2));
            two.put([3, largest].into_iter());
            others.mask(0..2);
            let size = dtype.bytes() as usize;
            let number = |at: usize| -> u32 {
                let mut bytes = [0; 4];
                bytes[..size].copy_from_slice(&memory[at * size..][..size]);
                // x86-64 and aarch64 are little-endian.
                u32::from_le_bytes(bytes)
            };
            assert_eq!([number(0), number(1)], [3, largest]);
            assert!(memory[2 * size..].iter().all(|byte| *byte == 0xFF));
        }
    }
}
