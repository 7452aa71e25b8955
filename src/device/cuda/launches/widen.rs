//! Casts u8 and u16 ids to i32.

use super::sizes::{BLOCK, blocks, count, flag, pointer};
use crate::DeviceError;
use crate::cuda::launcher::{Launcher, Operand};
use ops::{CastIds, DType};

/// Elements per thread.
const SINGLES: usize = 8;

pub(super) fn run(
    op: &CastIds,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let elements = inputs[0].ty.elements();
    let name = if inputs[0].ty.dtype == DType::U8 { "widen_u8" } else { "widen_u16" };
    let arguments = [pointer(&outputs[0]), pointer(&inputs[0]), count(elements), flag(op.masked)];
    launcher.kernel(name, [blocks(elements, BLOCK as usize * SINGLES)?, 1, 1], BLOCK, 0, &arguments)
}
