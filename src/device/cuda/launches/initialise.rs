//! Constants and random numbers.

use crate::device::DeviceError;
use crate::device::cuda::launcher::{Argument, Launcher, Operand};
use crate::ops::{DType, Fill, Normal};

use super::sizes::{BLOCK, blocks, count, pointer};

/// Elements that a block makes.
const ELEMENTS: usize = 1024;
/// Bytes that a block fills with zeros.
const ZEROS: usize = 4096;

pub(super) fn fill(op: &Fill, outputs: &[Operand], launcher: &mut Launcher) -> Result<(), DeviceError> {
    if op.output.dtype != DType::F32 {
        // Of other types, zeros alone.
        let bytes = outputs[0].ty.bytes() as usize;
        let arguments = [pointer(&outputs[0]), count(bytes)];
        return launcher.kernel("zeros", [blocks(bytes, ZEROS)?, 1, 1], BLOCK, 0, &arguments);
    }
    let elements = outputs[0].ty.elements();
    let arguments = [pointer(&outputs[0]), count(elements), Argument::F32(op.value)];
    launcher.kernel("fill", [blocks(elements, ELEMENTS)?, 1, 1], BLOCK, 0, &arguments)
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
    launcher.kernel("normal", [blocks(elements, ELEMENTS)?, 1, 1], BLOCK, 0, &arguments)
}
