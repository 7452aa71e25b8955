//! Linear layers of experts: a matmul for each expert's range of rows.

use std::ops::Range;

use ops::ExpertLinearWeightGradient;

use super::float::Float;
use super::matmul::{Matmul, Matrix};
use super::operands::{Addend, Operands};
use super::workers::Workers;

/// The rows of each expert.
fn ranges(ends: &[i32]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    ends.iter().map(move |&end| std::mem::replace(&mut start, end as usize)..end as usize)
}

/// `y = x W^T`
pub(super) fn forward<T: Float>(operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let (inner, out) = (operands.input_type(0).shape.last(), operands.output_type(0).shape.last());
    by_expert::<T>(
        operands,
        |matrix| Matrix::new(matrix, inner).transposed(),
        [inner, out],
        scratch,
        workers,
    );
}

/// `dx = dy W`
pub(super) fn input_gradient<T: Float>(operands: &mut Operands, scratch: &mut [f32], workers: &Workers) {
    let (out, inner) = (operands.input_type(0).shape.last(), operands.output_type(0).shape.last());
    by_expert::<T>(operands, |matrix| Matrix::new(matrix, inner), [out, inner], scratch, workers);
}

/// Multiplies the rows of each expert, of `inner` columns, by its matrix, which gives `columns` columns.
fn by_expert<T: Float>(
    operands: &mut Operands,
    right: impl Fn(&[T]) -> Matrix<'_, T>,
    [inner, columns]: [usize; 2],
    scratch: &mut [f32],
    workers: &Workers,
) {
    let (x, weights, ends) = (operands.input::<T>(0), operands.input::<T>(1), operands.i32_input(2));
    let y = operands.output::<T>(0);
    for (rows, weight) in ranges(ends).zip(weights.chunks_exact(inner * columns)) {
        let matmul: Matmul<T, T, T> = Matmul {
            rows: rows.len(),
            inner,
            columns,
            left: Matrix::new(&x[rows.start * inner..rows.end * inner], inner),
            right: right(weight),
            addend: Addend::Zero,
            bias: None,
            sums: None,
        };
        matmul.run(&mut y[rows.start * columns..rows.end * columns], None, scratch, workers);
    }
}

/// `dW = dy^T x`
pub(super) fn weight_gradient<T: Float, G: Float>(
    op: &ExpertLinearWeightGradient,
    operands: &mut Operands,
    scratch: &mut [f32],
    workers: &Workers,
) {
    let [inner, out] = [0, 1].map(|input| operands.input_type(input).shape.last());
    let (x, dy, ends) = (operands.input::<T>(0), operands.input::<T>(1), operands.i32_input(2));
    let gradients = operands.output::<G>(0).chunks_exact_mut(out * inner);
    for (rows, gradient) in ranges(ends).zip(gradients) {
        if rows.is_empty() {
            if !op.accumulate {
                gradient.fill(G::default());
            }
            continue;
        }
        let matmul: Matmul<T, G, f32> = Matmul {
            rows: out,
            inner: rows.len(),
            columns: inner,
            left: Matrix::new(&dy[rows.start * out..rows.end * out], out).transposed(),
            right: Matrix::new(&x[rows.start * inner..rows.end * inner], inner),
            addend: if op.accumulate { Addend::Output } else { Addend::Zero },
            bias: None,
            sums: None,
        };
        matmul.run(gradient, None, scratch, workers);
    }
}
