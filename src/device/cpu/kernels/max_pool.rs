//! Maximum pooling.

use ops::{MaxPool, MaxPoolBackward};

use super::float::{BUFFER, Float, update, write};
use super::images::Images;
use super::operands::Operands;
use super::simd::simd;
use super::workers::Workers;

pub(super) fn forward<T: Float>(MaxPool { window }: &MaxPool, operands: &mut Operands, workers: &Workers) {
    let [images, pooled] = [operands.input_type(0), operands.output_type(0)].map(|ty| Images::new(&ty.shape));
    let (x, level) = (operands.input::<T>(0), workers.level());
    let (y, places) = (operands.output::<T>(0), operands.output_codes(1));
    pooled.for_each_pixel(y, places, window.cells(), workers, |place, y, places| {
        let mut wide = [0.0; BUFFER];
        write(level, y, &mut [0.0; BUFFER], |run, y| {
            let places = &mut places[run.clone()];
            y.fill(f32::NEG_INFINITY);
            for (index, under) in images.under(window, place).enumerate() {
                // At most 255 cells.
                let cell = under.cell as u8;
                if index == 0 {
                    // The maximum of a window of minus infinities.
                    places.fill(cell);
                }
                let x = T::widened(level, &x[under.elements(&run)], &mut wide);
                take_larger(level, x, cell, y, places);
            }
        });
    });
}

simd! {
    /// Replaces maxima and their places where x is larger, or is a NaN.
    fn take_larger(x: &[f32], cell: u8, y: &mut [f32], places: &mut [u8]) {
        let channels = x.len();
        let (y, places) = (&mut y[..channels], &mut places[..channels]);
        for c in 0..channels {
            let larger = x[c] > y[c] || x[c].is_nan();
            y[c] = if larger { x[c] } else { y[c] };
            places[c] = if larger { cell } else { places[c] };
        }
    }
}

pub(super) fn backward<T: Float>(op: &MaxPoolBackward, operands: &mut Operands, workers: &Workers) {
    let [pooled, images] = [operands.input_type(0), operands.output_type(0)].map(|ty| Images::new(&ty.shape));
    let (dy, places) = (operands.input::<T>(0), operands.input_codes(1));
    let partial = operands.addend::<T>(0, op.accumulate.then_some(2));
    let level = workers.level();
    let work = op.window.cells().div_ceil(op.window.stride * op.window.stride);
    images.for_each_pixel(operands.output::<T>(0), &mut [(); 0], work, workers, |pixel, dx, _| {
        images.start_from(partial, pixel, dx);
        let mut wide = [0.0; BUFFER];
        update(level, dx, &mut [0.0; BUFFER], |run, dx| {
            for over in pooled.over(&op.window, pixel) {
                let elements = over.elements(&run);
                let dy = T::widened(level, &dy[elements.clone()], &mut wide);
                add_where(level, dx, dy, &places[elements], over.cell as u8);
            }
        });
    });
}

simd! {
    /// Adds dy where the maximum is at this cell.
    fn add_where(dx: &mut [f32], dy: &[f32], places: &[u8], cell: u8) {
        let channels = dx.len();
        let (dy, places) = (&dy[..channels], &places[..channels]);
        for c in 0..channels {
            dx[c] += if places[c] == cell { dy[c] } else { 0.0 };
        }
    }
}
