//! Average pooling.

use ops::{AvgPool, AvgPoolBackward, Window};

use super::elementwise::{add_scaled_to, add_to};
use super::float::{BUFFER, Float, update, write};
use super::images::{Cell, Images};
use super::operands::Operands;
use super::simd::Level;
use super::workers::Workers;

pub(super) fn forward<T: Float>(AvgPool { window }: &AvgPool, operands: &mut Operands, workers: &Workers) {
    let [images, pooled] = [operands.input_type(0), operands.output_type(0)].map(|ty| Images::new(&ty.shape));
    let (x, level) = (operands.input::<T>(0), workers.level());
    let y = operands.output::<T>(0);
    pooled.for_each_pixel(y, &mut [(); 0], window.cells(), workers, |place, y, _| {
        write(level, y, &mut [0.0; BUFFER], |run, y| {
            y.fill(0.0);
            add_mean(level, x, window, || images.under(window, place), run.start, y);
        });
    });
}

pub(super) fn backward<T: Float>(op: &AvgPoolBackward, operands: &mut Operands, workers: &Workers) {
    let [pooled, images] = [operands.input_type(0), operands.output_type(0)].map(|ty| Images::new(&ty.shape));
    let dy = operands.input::<T>(0);
    let partial = operands.addend::<T>(0, op.accumulate.then_some(1));
    let (window, level) = (&op.window, workers.level());
    let work = window.cells().div_ceil(window.stride * window.stride);
    images.for_each_pixel(operands.output::<T>(0), &mut [(); 0], work, workers, |pixel, dx, _| {
        images.start_from(partial, pixel, dx);
        update(level, dx, &mut [0.0; BUFFER], |run, dx| {
            add_mean(level, dy, window, || pooled.over(window, pixel), run.start, dx);
        });
    });
}

/// Adds to `output`, channels from `first` on, the values of these cells over the number of the kernel's cells. Each
/// row of the kernel has its own sum, because a sum of all cells of a large image would lose digits.
fn add_mean<T: Float, Cells: Iterator<Item = Cell>>(
    level: Level,
    values: &[T],
    window: &Window,
    cells: impl Fn() -> Cells,
    first: usize,
    output: &mut [f32],
) {
    let (mut total, mut row, mut wide) = ([0.0; BUFFER], [0.0; BUFFER], [0.0; BUFFER]);
    for (part, output) in output.chunks_mut(BUFFER).enumerate() {
        let start = first + part * BUFFER;
        let channels = start..start + output.len();
        let (total, row) = (&mut total[..output.len()], &mut row[..output.len()]);
        total.fill(0.0);
        row.fill(0.0);
        for cell in cells() {
            let values = T::widened(level, &values[cell.elements(&channels)], &mut wide);
            if cell.is_first_of_row {
                add_to(level, total, row);
                row.copy_from_slice(values);
            } else {
                add_to(level, row, values);
            }
        }
        add_to(level, total, row);
        add_scaled_to(level, output, total, 1.0 / window.cells() as f32);
    }
}
