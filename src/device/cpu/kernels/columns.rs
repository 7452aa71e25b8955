//! Ranges of columns.

use ops::{AddColumns, TakeColumns};

use super::elementwise::add_to;
use super::float::{BUFFER, Float, update};
use super::operands::Operands;
use super::workers::{SharedSlice, Workers};

/// Rows per task.
const ROWS: usize = 16;

pub(super) fn add<T: Float>(op: &AddColumns, operands: &mut Operands, workers: &Workers) {
    let width = operands.input_type(0).shape.last();
    let (ty, part) = (*operands.input_type(1), operands.input::<T>(1));
    let (rows, columns) = (ty.shape.rows(), ty.shape.last());
    let first = op.place.first(width, columns).expect("a checked operation");
    let source = operands.input_unless_aliased::<T>(0, 0);
    let (output, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    workers.for_each_chunk(rows, ROWS, |rows| {
        let mut read = [0.0; BUFFER];
        for row in rows {
            let elements = row * width..(row + 1) * width;
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let y = unsafe { output.range_mut(elements.clone()) };
            if let Some(source) = source {
                y.copy_from_slice(&source[elements]);
            }
            let part = &part[row * columns..(row + 1) * columns];
            update(level, &mut y[first..first + columns], &mut [0.0; BUFFER], |run, y| {
                add_to(level, y, T::widened(level, &part[run], &mut read));
            });
        }
    });
}

pub(super) fn take<T: Float>(op: &TakeColumns, operands: &mut Operands, workers: &Workers) {
    let ty = *operands.input_type(0);
    let (width, x) = (ty.shape.last(), operands.input::<T>(0));
    let start = op.place.first(width, op.columns).expect("a checked operation");
    let part = SharedSlice::new(operands.output::<T>(0));
    workers.for_each_chunk(ty.shape.rows(), ROWS, |rows| {
        for row in rows {
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            let part = unsafe { part.range_mut(row * op.columns..(row + 1) * op.columns) };
            let first = row * width + start;
            part.copy_from_slice(&x[first..first + op.columns]);
        }
    });
}
