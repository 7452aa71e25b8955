//! Casts pixels to numbers.

use super::sizes::{BLOCK, blocks, count, optional, pointer};
use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{CastPixels, PixelScale};

/// Elements per thread.
const SINGLES: usize = 4;

pub(super) fn run(
    op: &CastPixels,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let pixels = &inputs[0];
    let elements = pixels.ty.elements();
    let length = elements / pixels.ty.shape.dims()[0].max(1);
    // Factors are positive: 0 selects the normalisation.
    let (factor, mean, deviation) = match op.scale {
        PixelScale::Factor(factor) => (factor, [0.0; 3], [1.0; 3]),
        PixelScale::Normalised { mean, deviation, .. } => (0.0, mean, deviation),
    };
    let mut arguments = vec![
        pointer(&outputs[0]),
        pointer(pixels),
        optional(inputs.get(1).map(|weights| weights.address)),
        count(elements),
        count(length),
        count(length / op.scale.channels()),
    ];
    arguments.extend([factor].into_iter().chain(mean).chain(deviation).map(Argument::F32));
    launcher.kernel("cast_pixels", [blocks(elements, BLOCK as usize * SINGLES)?, 1, 1], BLOCK, 0, &arguments)
}
