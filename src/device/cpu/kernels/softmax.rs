//! Softmax over rows.

use super::elementwise::dot;
use super::float::{BUFFER, Float, read, update};
use super::math::{exp, largest, sum};
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

/// Rows per task.
const ROWS: usize = 16;

pub(super) fn forward<T: Float>(operands: &mut Operands, workers: &Workers) {
    let source = operands.input_unless_aliased::<T>(0, 0);
    each_row::<T>(operands, source, workers, |level, _, y| {
        let (mut buffer, mut most, mut total) = ([0.0; BUFFER], f32::NEG_INFINITY, 0.0);
        read(level, y, &mut buffer, |_, x| most = most.max(largest_of(level, x)));
        // Exponentials are computed twice, so that a 16-bit y is rounded once.
        read(level, y, &mut buffer, |_, x| total += sum_of_exponentials(level, x, most));
        update(level, y, &mut buffer, |_, y| exponentials(level, y, most, 1.0 / total));
    });
}

pub(super) fn backward<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (source, y) = (operands.input_unless_aliased::<T>(0, 0), operands.input::<T>(1));
    let columns = operands.input_type(1).shape.last();
    each_row::<T>(operands, source, workers, |level, row, dx| {
        let y = &y[row * columns..(row + 1) * columns];
        let (mut buffer, mut wide, mut along) = ([0.0; BUFFER], [0.0; BUFFER], 0.0);
        read(level, dx, &mut buffer, |run, dy| {
            along += dot(level, dy, T::widened(level, &y[run], &mut wide))
        });
        update(level, dx, &mut buffer, |run, dx| {
            differentiate(level, dx, T::widened(level, &y[run], &mut wide), along);
        });
    });
}

/// Calls `work(level, row, elements)` for each row of output 0, which first holds `source`, or its present contents if
/// that is `None`.
fn each_row<T: Float>(
    operands: &mut Operands,
    source: Option<&[T]>,
    workers: &Workers,
    work: impl Fn(Level, usize, &mut [T]) + Sync,
) {
    let columns = operands.output_type(0).shape.last();
    let output = SharedSlice::new(operands.output::<T>(0));
    workers.for_each_chunk(output.len() / columns, ROWS, |rows| {
        let elements = rows.start * columns..rows.end * columns;
        // SAFETY: chunks of rows do not overlap.
        #[allow(unsafe_code)]
        let output = unsafe { output.range_mut(elements.clone()) };
        if let Some(source) = source {
            output.copy_from_slice(&source[elements]);
        }
        for (row, output) in rows.zip(output.chunks_exact_mut(columns)) {
            work(workers.level(), row, output);
        }
    });
}

simd! {
    fn largest_of(x: &[f32]) -> f32 {
        largest(x)
    }
}

simd! {
    fn sum_of_exponentials(x: &[f32], most: f32) -> f32 {
        sum(x.len(), |c| exp::<FUSED>(x[c] - most))
    }
}

simd! {
    /// `x = exp(x - most) factor`
    fn exponentials(x: &mut [f32], most: f32, factor: f32) {
        for x in x.iter_mut() {
            *x = exp::<FUSED>(*x - most) * factor;
        }
    }
}

simd! {
    /// `dx = y (dx - along)`
    fn differentiate(dx: &mut [f32], y: &[f32], along: f32) {
        for (dx, &y) in dx.iter_mut().zip(y) {
            *dx = y * (*dx - along);
        }
    }
}
