//! Constants and random numbers.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{Fill, Normal, Operation as _};

use super::sizes::{BLOCK, blocks, by_dtype, count, pointer};

/// Elements per block.
const ELEMENTS: usize = 1024;
/// Bytes per block of the zero-fill kernel.
const ZEROS: usize = 4096;

pub(super) fn fill(op: &Fill, outputs: &[Operand], launcher: &mut Launcher) -> Result<(), DeviceError> {
    if op.is_zeros() {
        let bytes = outputs[0].ty.bytes() as usize;
        let arguments = [pointer(&outputs[0]), count(bytes)];
        return launcher.kernel("zeros", [blocks(bytes, ZEROS)?, 1, 1], BLOCK, 0, &arguments);
    }
    let elements = outputs[0].ty.elements();
    let arguments = [pointer(&outputs[0]), count(elements), Argument::F32(op.value)];
    let name = by_dtype(op.output.dtype, ["fill_f32", "fill_bf16", "fill_f16"])?;
    launcher.kernel(name, [blocks(elements, ELEMENTS)?, 1, 1], BLOCK, 0, &arguments)
}

pub(super) fn normal(op: &Normal, outputs: &[Operand], launcher: &mut Launcher) -> Result<(), DeviceError> {
    let elements = outputs[0].ty.elements();
    let arguments = [
        pointer(&outputs[0]),
        count(elements),
        Argument::F32(op.deviation.of(&op.output)),
        Argument::U64(op.seed),
        Argument::U32(op.site),
    ];
    let name = by_dtype(op.output.dtype, ["normal_f32", "normal_bf16", "normal_f16"])?;
    launcher.kernel(name, [blocks(elements, ELEMENTS)?, 1, 1], BLOCK, 0, &arguments)
}
