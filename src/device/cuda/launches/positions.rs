//! Learned positions, as matrices with a row for each sample.

use crate::DeviceError;
use crate::cuda::launcher::{Launcher, Operand};
use ops::{DType, PositionsGradient, TensorType};

use super::column_sums::{Sums, column_sums, sum_partials};
use super::elementwise::{add_bias, copy};

pub(super) fn add(
    inputs: &[Operand],
    outputs: &[Operand],
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (x, table, y) = (&inputs[0], &inputs[1], &outputs[0]);
    if y.address != x.address {
        copy(y, x, launcher)?;
    }
    add_bias(&rows(y), table.address, launcher)
}

pub(super) fn gradient(
    op: &PositionsGradient,
    inputs: &[Operand],
    outputs: &[Operand],
    (address, bytes): (u64, u64),
    launcher: &mut Launcher,
) -> Result<(), DeviceError> {
    let (dy, dtable) = (rows(&inputs[0]), &outputs[0]);
    if op.gradients == DType::F32 {
        return column_sums(&dy, dtable.address, op.accumulate, (address, bytes), launcher);
    }
    column_sums(&dy, address, false, (0, 0), launcher)?;
    let elements = dtable.ty.elements();
    let sinks = Sums { dtype: op.gradients, addresses: [dtable.address, 0] };
    sum_partials(sinks, address, [1, elements, elements], op.accumulate, launcher)
}

fn rows(batch: &Operand) -> Operand {
    let samples = batch.ty.shape.dims()[0];
    let ty = TensorType::new(batch.ty.dtype, &[samples, batch.ty.elements() / samples]);
    Operand { ty, ..*batch }
}
