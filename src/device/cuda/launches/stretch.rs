//! Gathers samples: slices of a long row of tokens.

use super::sizes::{BLOCK, blocks, count, flag, pointer, size, size_argument};
use crate::DeviceError;
use crate::cuda::launcher::{Launcher, Operand};
use ops::{DType, GatherTokens};

pub(super) fn run(
    op: &GatherTokens,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [row, place] = [&inputs[0], &inputs[1]];
    let name = match row.ty.dtype {
        DType::U8 => "stretch_u8",
        DType::U16 => "stretch_u16",
        _ => "stretch_i32",
    };
    let samples = size(place.ty.shape.rows())?;
    let arguments = [
        pointer(&outputs[0]),
        pointer(row),
        pointer(place),
        count(row.ty.elements()),
        size_argument(op.length)?,
        size_argument(op.later)?,
        flag(op.masks),
    ];
    launcher.kernel(name, [samples, blocks(op.length, BLOCK as usize)?, 1], BLOCK, 0, &arguments)
}
