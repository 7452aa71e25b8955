//! Transposition of each sample.

use ops::Transpose;

use super::float::Float;
use super::operands::Operands;
use super::workers::{SharedSlice, Workers};

/// Rows and columns of the blocks in which matrices are transposed: both sides fit the L1 cache.
const BLOCK: usize = 32;

pub(super) fn run<T: Float>(op: &Transpose, operands: &mut Operands, workers: &Workers) {
    let [rows, columns] = op.sizes();
    let x = operands.input::<T>(0);
    let added = op.accumulate.then(|| operands.input_unless_aliased::<T>(0, 1));
    let (y, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    // Each task writes some rows of a sample of y.
    let parts = columns.div_ceil(BLOCK);
    workers.for_each(x.len() / (rows * columns).max(1) * parts, |task| {
        let (sample, part) = (task / parts, task % parts);
        let start = sample * rows * columns;
        let of_y = part * BLOCK..columns.min((part + 1) * BLOCK);
        let range = start + of_y.start * rows..start + of_y.end * rows;
        // SAFETY: tasks write different rows.
        #[allow(unsafe_code)]
        let y = unsafe { y.range_mut(range.clone()) };
        let x = &x[start..start + rows * columns];
        let Some(added) = added else { return transpose(x, [rows, columns], of_y.start, y) };
        if let Some(added) = added {
            y.copy_from_slice(&added[range]);
        }
        let mut transposed = [T::default(); BLOCK];
        let [mut sum, mut other] = [[0.0; BLOCK]; 2];
        for (column, y) in of_y.zip(y.chunks_mut(rows)) {
            for (index, y) in y.chunks_mut(BLOCK).enumerate() {
                for (row, element) in transposed[..y.len()].iter_mut().enumerate() {
                    *element = x[(index * BLOCK + row) * columns + column];
                }
                let [sum, other] = [&mut sum[..y.len()], &mut other[..y.len()]];
                T::widen(level, y, sum);
                T::widen(level, &transposed[..y.len()], other);
                sum.iter_mut().zip(&*other).for_each(|(sum, other)| *sum += other);
                T::narrow(level, sum, y);
            }
        }
    });
}

/// Stores columns of a row-major matrix, from `first` on, as the rows of `y`.
pub(super) fn transpose<T: Copy>(x: &[T], [rows, columns]: [usize; 2], first: usize, y: &mut [T]) {
    for row in (0..rows).step_by(BLOCK) {
        let block = row..rows.min(row + BLOCK);
        for (column, y) in y.chunks_mut(rows).enumerate() {
            for (row, y) in block.clone().zip(&mut y[block.clone()]) {
                *y = x[row * columns + first + column];
            }
        }
    }
}
