//! Memory of one sample in a batch.

use crate::ids::Ids;
use crate::{Part, PartRole};
use ops::DType;

/// Memory of the parts of one sample that are read.
#[derive(Debug, Default)]
pub(crate) struct SampleMemory<'a> {
    pub(crate) input: Option<InputMemory<'a>>,
    pub(crate) targets: Option<TargetMemory<'a>>,
}

#[derive(Debug)]
pub(crate) enum InputMemory<'a> {
    /// f32 in native byte order.
    Numbers(&'a mut [[u8; 4]]),
    /// u8 as stored, before normalisation.
    Pixels(&'a mut [u8]),
    /// All below `count`.
    Ids { ids: Ids<'a>, count: usize },
}

#[derive(Debug)]
pub(crate) enum TargetMemory<'a> {
    /// All below `count`.
    Classes { ids: Ids<'a>, count: usize },
    /// f32 in native byte order.
    Numbers(&'a mut [[u8; 4]]),
}

impl<'a> SampleMemory<'a> {
    /// Adds the input or the targets.
    pub(crate) fn add(&mut self, part: &Part, memory: &'a mut [u8]) {
        let dtype = part.ty.dtype;
        match (part.role, part.below) {
            (PartRole::Input, Some(below)) => {
                self.input = Some(InputMemory::Ids { ids: Ids::of(dtype, memory), count: below.count });
            }
            (PartRole::Input, None) => self.input = Some(InputMemory::of(dtype, memory)),
            (_, Some(below)) => {
                self.targets =
                    Some(TargetMemory::Classes { ids: Ids::of(dtype, memory), count: below.count });
            }
            (_, None) => self.targets = Some(TargetMemory::Numbers(memory.as_chunks_mut().0)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_none() && self.targets.is_none()
    }
}

impl<'a> InputMemory<'a> {
    pub(crate) fn of(dtype: DType, memory: &'a mut [u8]) -> InputMemory<'a> {
        match dtype {
            DType::U8 => InputMemory::Pixels(memory),
            _ => InputMemory::Numbers(memory.as_chunks_mut().0),
        }
    }

    /// Copies bytes in the memory's type.
    pub(crate) fn copy_from(self, held: &[u8]) {
        match self {
            InputMemory::Numbers(numbers) => numbers.as_flattened_mut().copy_from_slice(held),
            InputMemory::Pixels(pixels) => pixels.copy_from_slice(held),
            InputMemory::Ids { .. } => unreachable!("ids are copied as they are held"),
        }
    }
}
