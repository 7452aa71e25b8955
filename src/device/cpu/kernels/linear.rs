//! Linear layers and their gradients: matmuls with fused bias, activation and residual.

use std::ops::Range;

use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Processor};

use super::activation::{activate, activate_onto, scale_by_slope};
use super::float::{BUFFER, Float, read, update, write};
use super::matmul::{Matmul, Matrix, RowSums};
use super::operands::{Addend, Operands};
use super::workers::{SharedSlice, Workers};

pub(super) fn forward<T: Float>(
    op: &Linear,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let residual = op.residual.then(|| operands.input_type(2 + usize::from(op.bias)).dtype);
    match (op.activation, residual) {
        (None, Some(DType::F32)) => plain::<T, f32>(op, operands, scratch, workers),
        (None, _) => plain::<T, T>(op, operands, scratch, workers),
        (Some(activation), Some(DType::F32)) => {
            activated::<T, f32>(op, activation, operands, scratch, workers);
        }
        (Some(activation), _) => activated::<T, T>(op, activation, operands, scratch, workers),
    }
}

fn plain<T: Float, Y: Float>(op: &Linear, operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let matmul: Matmul<T, Y, Y> = matmul(op, operands, residual(op, operands));
    matmul.run(operands.output(0), None, scratch, workers);
}

/// The residual is added to the activated result of the matmul.
fn activated<T: Float, Y: Float>(
    op: &Linear,
    activation: Activation,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let matmul: Matmul<T, T, Y> = matmul(op, operands, Addend::Zero);
    let residual: Addend<Y> = residual(op, operands);
    let (y, level) = (SharedSlice::new(operands.output::<Y>(0)), workers.level());
    let epilogue = |range: Range<usize>, x: &mut [f32]| {
        // SAFETY: the ranges of an epilogue do not overlap.
        #[allow(unsafe_code)]
        let y = unsafe { y.range_mut(range.clone()) };
        let mut buffer = [0.0; BUFFER];
        match residual {
            Addend::Zero => {
                return write(level, y, &mut buffer, |run, y| activate(level, activation, y, &x[run]));
            }
            Addend::Output => {}
            Addend::Input(residual) => y.copy_from_slice(&residual[range]),
        }
        update(level, y, &mut buffer, |run, y| activate_onto(level, activation, y, &x[run]));
    };
    matmul.run(operands.output(1), Some(&epilogue), scratch, workers);
}

fn residual<'a, Y: Float>(op: &Linear, operands: &Operands<'a>) -> Addend<'a, Y> {
    operands.addend(0, op.residual.then_some(2 + usize::from(op.bias)))
}

fn matmul<'a, T: Float, C: Float, B: Float>(
    op: &Linear,
    operands: &Operands<'a>,
    addend: Addend<'a, C>,
) -> Matmul<'a, T, C, B> {
    let (rows, inner) = (operands.input_type(0).shape.rows(), operands.input_type(0).shape.last());
    Matmul {
        rows,
        inner,
        columns: operands.input_type(1).shape.dims()[0],
        left: Matrix::new(operands.input(0), inner),
        right: Matrix::new(operands.input(1), inner).transposed(),
        addend,
        bias: op.bias.then(|| operands.input(2)),
        sums: None,
    }
}

pub(super) fn input_gradient<T: Float>(
    op: &LinearInputGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let [out, inner] = [0, 1].map(|index| operands.input_type(1).shape.dims()[index]);
    let matmul: Matmul<T, T, T> = Matmul {
        rows: operands.input_type(0).shape.rows(),
        inner: out,
        columns: inner,
        left: Matrix::new(operands.input(0), out),
        right: Matrix::new(operands.input(1), inner),
        addend: operands.addend(0, op.accumulate.then_some(2)),
        bias: None,
        sums: None,
    };
    let dx = operands.output(0);
    match op.activation {
        None => matmul.run(dx, None, scratch, workers),
        Some(activation) => {
            let (saved, level) = (operands.input::<T>(2 + usize::from(op.accumulate)), workers.level());
            let epilogue = |range: Range<usize>, dx: &mut [f32]| {
                read(level, &saved[range], &mut [0.0; BUFFER], |run, saved| {
                    scale_by_slope(level, activation, &mut dx[run], saved);
                });
            };
            matmul.run(dx, Some(&epilogue), scratch, workers);
        }
    }
}

pub(super) fn weight_gradient<T: Float, G: Float>(
    op: &LinearWeightGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (inner, out) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let (x, dy) = (operands.input::<T>(0), operands.input::<T>(1));
    let sums_bytes = op.sums_bytes(operands.input_type(1), Processor::Cpu) as usize;
    let (sums, scratch) = scratch.split_at_mut(sums_bytes / size_of::<f32>());
    let (is_rounded, level) = (!sums.is_empty(), workers.level());
    // A rounded dbias is summed in f32 in the workspace.
    let dbias = is_rounded.then(|| operands.output::<G>(1));
    if let Some(dbias) = dbias.as_deref().filter(|_| op.accumulate) {
        G::widen(level, dbias, &mut sums[..out]);
    }
    let row_sums = op.bias.then(|| if is_rounded { &mut sums[..out] } else { operands.output::<f32>(1) });
    let matmul: Matmul<T, G, f32> = Matmul {
        rows: out,
        inner: operands.input_type(0).shape.rows(),
        columns: inner,
        left: Matrix::new(dy, out).transposed(),
        right: Matrix::new(x, inner),
        addend: if op.accumulate { Addend::Output } else { Addend::Zero },
        bias: None,
        sums: row_sums.map(|sums| RowSums { sums: SharedSlice::new(sums), accumulate: op.accumulate }),
    };
    matmul.run(operands.output(0), None, scratch, workers);
    if let Some(dbias) = dbias {
        G::narrow(level, &sums[..out], dbias);
    }
}
