//! Root-mean-square normalisation over rows.

use crate::DeviceError;
use crate::cuda::launcher::{Argument, Launcher, Operand};
use ops::{DType, RmsNorm, RmsNormBackward};

use super::column_sums::{Sums, sum_partials};
use super::sizes::{BLOCK, blocks, by_dtype, optional, pointer, size, size_argument};

/// Channels of a row that a block holds in registers.
const BLOCK_CHANNELS: usize = 6144;

/// Kernel names of one direction, by the type of y: with x in f32, and with x of y's type. The first group holds rows
/// in registers.
macro_rules! names {
    ($name:literal) => {
        [names!($name, ""), names!($name, "_any")]
    };
    ($name:literal, $how:literal) => {
        [
            [concat!($name, "_f32", $how), concat!($name, "_bf16", $how), concat!($name, "_f16", $how)],
            [
                concat!($name, "_f32", $how),
                concat!($name, "_bf16_bf16", $how),
                concat!($name, "_f16_f16", $how),
            ],
        ]
    };
}

fn kernel(names: [[[&'static str; 3]; 2]; 2], y: &Operand, x: &Operand) -> Result<&'static str, DeviceError> {
    let fits_registers = fits_registers(x.ty.shape.last());
    by_dtype(y.ty.dtype, names[usize::from(!fits_registers)][usize::from(x.ty.dtype != DType::F32)])
}

/// Whether a block can hold a row in registers: at most `BLOCK_CHANNELS`, a multiple of four.
fn fits_registers(channels: usize) -> bool {
    channels.is_multiple_of(4) && channels <= BLOCK_CHANNELS
}

/// One block per row.
pub(super) fn forward(
    op: &RmsNorm,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [x, y] = [&inputs[0], &outputs[0]];
    let mut arguments: Vec<Argument> = outputs.iter().chain(inputs).map(pointer).collect();
    arguments.push(size_argument(x.ty.shape.last())?);
    arguments.extend([op.offset, op.epsilon].map(Argument::F32));
    let grid = [size(x.ty.shape.rows())?, 1, 1];
    launcher.kernel(kernel(names!("rms_norm"), y, x)?, grid, BLOCK, 0, &arguments)
}

/// One block per partial sum.
pub(super) fn backward(
    op: &RmsNormBackward,
    inputs: &[Operand],
    outputs: &[Operand],
    (partials, _): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let [dy, x, weight, rrms] = [0, 1, 2, 3].map(|index| &inputs[index]);
    let (rows, channels) = (x.ty.shape.rows(), x.ty.shape.last());
    let count = rows.div_ceil(RmsNormBackward::ROWS_PER_PARTIAL);
    launcher.kernel(
        kernel(names!("rms_norm_backward"), dy, x)?,
        [blocks(count, 1)?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(&outputs[0]),
            Argument::Pointer(partials),
            pointer(dy),
            pointer(x),
            pointer(weight),
            pointer(rrms),
            optional(op.accumulate.then(|| inputs[4].address)),
            optional(op.cast.then(|| outputs[2].address)),
            size_argument(rows)?,
            size_argument(channels)?,
            Argument::F32(op.offset),
        ],
    )?;
    let sinks = Sums { dtype: op.gradients, addresses: [outputs[1].address, 0] };
    sum_partials(sinks, partials, [count, channels, channels], op.accumulate_weight, launcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_fit_are_held_in_registers() {
        assert!([4, 768, 4096, 6144].into_iter().all(fits_registers));
        assert!(![1, 257, 6148, 8192].into_iter().any(fits_registers));
    }
}
