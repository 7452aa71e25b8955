//! Whole numbers of a sample, in the type that they are loaded in.

use super::batch::MASKED;
use ops::DType;

/// Memory of whole numbers in the machine's byte order: in as few bits as hold them all.
#[derive(Debug)]
pub(super) enum Ids<'a> {
    U8(&'a mut [u8]),
    U16(&'a mut [[u8; 2]]),
    I32(&'a mut [[u8; 4]]),
}

impl<'a> Ids<'a> {
    /// Panics for a type that ids are never loaded in.
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

    /// Those before a place, and those from it on.
    pub(super) fn split_at(self, place: usize) -> (Ids<'a>, Ids<'a>) {
        match self {
            Ids::U8(memory) => {
                let (before, behind) = memory.split_at_mut(place);
                (Ids::U8(before), Ids::U8(behind))
            }
            Ids::U16(memory) => {
                let (before, behind) = memory.split_at_mut(place);
                (Ids::U16(before), Ids::U16(behind))
            }
            Ids::I32(memory) => {
                let (before, behind) = memory.split_at_mut(place);
                (Ids::I32(before), Ids::I32(behind))
            }
        }
    }

    /// Puts numbers into it, as many as both have. Which type holds them all was checked before.
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

    /// Lets nothing be told from any of it: the type's largest number stands for that, or -1.
    pub(super) fn mask(&mut self) {
        let len = self.len();
        self.put(std::iter::repeat_n(MASKED.cast_unsigned(), len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lie_in_the_bits_of_their_type() {
        for (dtype, largest) in [(DType::U8, 254), (DType::U16, 65_534), (DType::I32, 1 << 30)] {
            let mut memory = vec![7; 4 * dtype.bytes() as usize];
            let (mut two, mut others) = Ids::of(dtype, &mut memory).split_at(2);
            assert_eq!((two.len(), others.len()), (2, 2));
            two.put([3, largest].into_iter());
            others.mask();
            let size = dtype.bytes() as usize;
            let number = |at: usize| -> u32 {
                let mut bytes = [0; 4];
                bytes[..size].copy_from_slice(&memory[at * size..][..size]);
                // The order of x86-64 and aarch64.
                u32::from_le_bytes(bytes)
            };
            assert_eq!([number(0), number(1)], [3, largest]);
            assert!(memory[2 * size..].iter().all(|byte| *byte == 0xFF));
        }
    }
}
