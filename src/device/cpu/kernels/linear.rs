//! Products with what is fused to them.

use std::ops::Range;

use ops::{Activation, DType, Linear, LinearInputGradient, LinearWeightGradient, Processor};

use super::activation::{activate, activate_onto, scale_by_slope};
use super::float::{BUFFER, Float, read, update, write};
use super::operands::{Operands, Start};
use super::product::{Matrix, Product, RowSums};
use super::workers::{Parts, Workers};

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
    let product: Product<T, Y, Y> = product(op, operands, residual(op, operands));
    product.run(operands.output(0), None, scratch, workers);
}

/// The residual is added to what the activation makes of the product.
fn activated<T: Float, Y: Float>(
    op: &Linear,
    activation: Activation,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let product: Product<T, T, Y> = product(op, operands, Start::Zero);
    let residual: Start<Y> = residual(op, operands);
    let (y, level) = (Parts::new(operands.output::<Y>(0)), workers.level());
    let finish = |place: Range<usize>, x: &mut [f32]| {
        // SAFETY: pieces of finished rows do not overlap.
        #[allow(unsafe_code)]
        let y = unsafe { y.part(place.clone()) };
        let mut buffer = [0.0; BUFFER];
        match residual {
            Start::Zero => {
                return write(level, y, &mut buffer, |run, y| activate(level, activation, y, &x[run]));
            }
            Start::Output => {}
            Start::Other(residual) => y.copy_from_slice(&residual[place]),
        }
        update(level, y, &mut buffer, |run, y| activate_onto(level, activation, y, &x[run]));
    };
    product.run(operands.output(1), Some(&finish), scratch, workers);
}

fn residual<'a, Y: Float>(op: &Linear, operands: &Operands<'a>) -> Start<'a, Y> {
    operands.start(0, op.residual.then_some(2 + usize::from(op.bias)))
}

fn product<'a, T: Float, C: Float, B: Float>(
    op: &Linear,
    operands: &Operands<'a>,
    start: Start<'a, C>,
) -> Product<'a, T, C, B> {
    let (rows, inner) = (operands.input_type(0).shape.rows(), operands.input_type(0).shape.last());
    Product {
        rows,
        inner,
        columns: operands.input_type(1).shape.dims()[0],
        left: Matrix::new(operands.input(0), inner),
        right: Matrix::new(operands.input(1), inner).transposed(),
        start,
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
    let product: Product<T, T, T> = Product {
        rows: operands.input_type(0).shape.rows(),
        inner: out,
        columns: inner,
        left: Matrix::new(operands.input(0), out),
        right: Matrix::new(operands.input(1), inner),
        start: operands.start(0, op.accumulate.then_some(2)),
        bias: None,
        sums: None,
    };
    let dx = operands.output(0);
    match op.activation {
        None => product.run(dx, None, scratch, workers),
        Some(activation) => {
            let (before, level) = (operands.input::<T>(2 + usize::from(op.accumulate)), workers.level());
            let finish = |place: Range<usize>, dx: &mut [f32]| {
                read(level, &before[place], &mut [0.0; BUFFER], |run, before| {
                    scale_by_slope(level, activation, &mut dx[run], before);
                });
            };
            product.run(dx, Some(&finish), scratch, workers);
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
    // Where they are rounded, rows are summed beside it.
    let dbias = is_rounded.then(|| operands.output::<G>(1));
    if let Some(dbias) = dbias.as_deref().filter(|_| op.accumulate) {
        G::widen(level, dbias, &mut sums[..out]);
    }
    let row_sums = op.bias.then(|| if is_rounded { &mut sums[..out] } else { operands.output::<f32>(1) });
    let product: Product<T, G, f32> = Product {
        rows: out,
        inner: operands.input_type(0).shape.rows(),
        columns: inner,
        left: Matrix::new(dy, out).transposed(),
        right: Matrix::new(x, inner),
        start: if op.accumulate { Start::Output } else { Start::Zero },
        bias: None,
        sums: row_sums.map(|sums| RowSums { sums: Parts::new(sums), accumulate: op.accumulate }),
    };
    product.run(operands.output(0), None, scratch, workers);
    if let Some(dbias) = dbias {
        G::narrow(level, &sums[..out], dbias);
    }
}
