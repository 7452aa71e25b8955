//! Gathers samples from all samples of a data set.

use super::sizes::{BLOCK, blocks, count, pointer};
use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::GatherSamples;

/// Elements per thread.
const SINGLES: usize = 4;

pub(super) fn run(
    op: &GatherSamples,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [samples, place] = [&inputs[0], &inputs[1]];
    let name = match samples.ty.dtype.bytes() {
        1 => "gather_samples_u8",
        2 => "gather_samples_u16",
        _ => "gather_samples_u32",
    };
    let elements = outputs[0].ty.elements();
    let length = elements / place.ty.shape.rows().max(1);
    let arguments = [
        pointer(&outputs[0]),
        pointer(samples),
        pointer(place),
        count(elements),
        count(samples.ty.elements() / length.max(1)),
        count(length),
        Argument::U32(if op.masks { u32::MAX } else { 0 }),
    ];
    launcher.kernel(name, [blocks(elements, BLOCK as usize * SINGLES)?, 1, 1], BLOCK, 0, &arguments)
}
