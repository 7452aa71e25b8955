//! Ranges of columns.

use crate::DeviceError;
use crate::cuda::launcher::{Launcher, Operand};
use ops::{AddColumns, ColumnPlace, TakeColumns};

use super::sizes::{BLOCK, by_dtype, pointer, size, size_argument};

pub(super) fn add(
    op: &AddColumns,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let ([x, part], y) = ([&inputs[0], &inputs[1]], &outputs[0]);
    launcher.kernel(
        by_dtype(x.ty.dtype, ["add_columns_f32", "add_columns_bf16", "add_columns_f16"])?,
        [size(x.ty.shape.rows())?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(y),
            pointer(x),
            pointer(part),
            size_argument(x.ty.shape.last())?,
            size_argument(part.ty.shape.last())?,
            size_argument(first(op.place, x, part))?,
        ],
    )
}

pub(super) fn take(
    op: &TakeColumns,
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (x, part) = (&inputs[0], &outputs[0]);
    launcher.kernel(
        by_dtype(x.ty.dtype, ["take_columns_f32", "take_columns_bf16", "take_columns_f16"])?,
        [size(x.ty.shape.rows())?, 1, 1],
        BLOCK,
        0,
        &[
            pointer(part),
            pointer(x),
            size_argument(x.ty.shape.last())?,
            size_argument(op.columns)?,
            size_argument(first(op.place, x, part))?,
        ],
    )
}

/// The first of the part's columns in x.
fn first(place: ColumnPlace, x: &Operand, part: &Operand) -> usize {
    place.first(x.ty.shape.last(), part.ty.shape.last()).expect("a checked operation")
}
