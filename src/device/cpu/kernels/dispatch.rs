//! Rows of experts: copies sorted by expert, and their sums. Each task writes consecutive rows, whatever the routing.

use std::ops::Range;

use ops::DispatchBackward;

use super::elementwise::{add_scaled_to, add_to, dot, scale_by};
use super::float::{BUFFER, Float, read, update, write};
use super::operands::{Addend, Operands};
use super::workers::{SharedSlice, Workers};

/// Rows per task.
const ROWS: usize = 16;

/// The elements of a row.
fn elements(row: usize, width: usize) -> Range<usize> {
    row * width..(row + 1) * width
}

/// Calls `work(row, elements of the row in output)` for each row of this width.
fn for_each_row<T: Send>(
    output: &mut [T],
    width: usize,
    workers: &Workers,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let (rows, output) = (output.len() / width, SharedSlice::new(output));
    workers.for_each_chunk(rows, ROWS, |rows| {
        for row in rows {
            // SAFETY: rows do not overlap.
            #[allow(unsafe_code)]
            work(row, unsafe { output.range_mut(elements(row, width)) });
        }
    });
}

pub(super) fn forward<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (width, chosen) = (operands.input_type(0).shape.last(), operands.input_type(2).shape.last());
    let (x, order) = (operands.input::<T>(0), operands.i32_input(1));
    for_each_row(operands.output::<T>(0), width, workers, |row, sorted| {
        sorted.copy_from_slice(&x[elements(order[row] as usize / chosen, width)]);
    });
}

pub(super) fn backward<T: Float>(op: &DispatchBackward, operands: &mut Operands, workers: &Workers) {
    let (width, chosen) = (operands.input_type(0).shape.last(), operands.input_type(1).shape.last());
    let (sorted, places) = (operands.input::<T>(0), operands.i32_input(1));
    let partial = operands.addend::<T>(0, op.accumulate.then_some(2));
    let level = workers.level();
    for_each_row(operands.output::<T>(0), width, workers, |row, dx| {
        match partial {
            Addend::Zero => dx.fill(T::default()),
            Addend::Output => {}
            Addend::Input(partial) => dx.copy_from_slice(&partial[elements(row, width)]),
        }
        let mut wide = [0.0; BUFFER];
        update(level, dx, &mut [0.0; BUFFER], |run, dx| {
            for &place in &places[elements(row, chosen)] {
                let sorted = &sorted[elements(place as usize, width)][run.clone()];
                add_to(level, dx, T::widened(level, sorted, &mut wide));
            }
        });
    });
}

pub(super) fn combine<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (width, chosen) = (operands.input_type(0).shape.last(), operands.input_type(2).shape.last());
    let (sorted, places) = (operands.input::<T>(0), operands.i32_input(2));
    let (weights, level) = (operands.input::<f32>(3), workers.level());
    for_each_row(operands.output::<T>(0), width, workers, |row, y| {
        let pairs = elements(row, chosen);
        let mut wide = [0.0; BUFFER];
        write(level, y, &mut [0.0; BUFFER], |run, y| {
            y.fill(0.0);
            for (&place, &weight) in places[pairs.clone()].iter().zip(&weights[pairs.clone()]) {
                let sorted = &sorted[elements(place as usize, width)][run.clone()];
                add_scaled_to(level, y, T::widened(level, sorted, &mut wide), weight);
            }
        });
    });
}

pub(super) fn combine_backward<T: Float>(operands: &mut Operands, workers: &Workers) {
    let (width, chosen) = (operands.input_type(1).shape.last(), operands.input_type(3).shape.last());
    let (dy, order) = (operands.input::<T>(0), operands.i32_input(2));
    let (places, weights) = (operands.i32_input(3), operands.input::<f32>(4));
    let source = operands.input_unless_aliased::<T>(0, 1);
    let (dsorted, level) = (operands.output::<T>(0), workers.level());
    let sorted = source.unwrap_or(dsorted);
    for_each_row(operands.output::<f32>(1), chosen, workers, |row, dweights| {
        let dy = &dy[elements(row, width)];
        for (dweight, &place) in dweights.iter_mut().zip(&places[elements(row, chosen)]) {
            let sorted = &sorted[elements(place as usize, width)];
            let (mut wide, mut wide_dy) = ([0.0; BUFFER], [0.0; BUFFER]);
            *dweight = 0.0;
            read(level, dy, &mut wide_dy, |run, dy| {
                *dweight += dot(level, dy, T::widened(level, &sorted[run], &mut wide));
            });
        }
    });
    for_each_row(dsorted, width, workers, |row, dsorted| {
        let pair = order[row] as usize;
        let dy = &dy[elements(pair / chosen, width)];
        let mut wide = [0.0; BUFFER];
        write(level, dsorted, &mut [0.0; BUFFER], |run, dsorted| {
            dsorted.copy_from_slice(T::widened(level, &dy[run], &mut wide));
            scale_by(level, dsorted, weights[pair]);
        });
    });
}
