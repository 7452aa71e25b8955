//! Rotary position embedding of queries and keys.

use ops::Rotary;

use super::float::Float;
use super::operands::Operands;
use super::simd::simd;
use super::workers::{SharedSlice, Workers};

pub(super) fn run<T: Float>(op: &Rotary, operands: &mut Operands, workers: &Workers) {
    let ty = *operands.input_type(0);
    let (sequence, row) = (ty.shape.dims()[1], ty.shape.last());
    let source = operands.input_unless_aliased::<T>(0, 0);
    let (output, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    let frequencies = op.frequencies.of_channels(op.channels);
    let half = op.channels / 2;
    // A task handles all rows of one position, whose angles are the same.
    workers.for_each_chunk(sequence, 1, |positions| {
        let mut rotation = vec![0.0; op.channels];
        let mut wide = vec![0.0; op.channels];
        for position in positions {
            let (cosines, sines) = rotation.split_at_mut(half);
            for (i, frequency) in frequencies.iter().enumerate() {
                let (sine, cosine) = (position as f32 * frequency).sin_cos();
                (cosines[i], sines[i]) = (cosine, if op.inverse { -sine } else { sine });
            }
            for index in (position..ty.shape.rows()).step_by(sequence) {
                let elements = index * row..(index + 1) * row;
                // SAFETY: positions do not overlap.
                #[allow(unsafe_code)]
                let values = unsafe { output.range_mut(elements.clone()) };
                if let Some(source) = source {
                    values.copy_from_slice(&source[elements]);
                }
                for head in values[..op.rotated * op.head].chunks_exact_mut(op.head) {
                    let head = &mut head[..op.channels];
                    match T::as_f32_mut(head) {
                        Some(head) => rotate(level, head, cosines, sines),
                        None => {
                            T::widen(level, head, &mut wide);
                            rotate(level, &mut wide, cosines, sines);
                            T::narrow(level, &wide, head);
                        }
                    }
                }
            }
        }
    });
}

simd! {
    fn rotate(head: &mut [f32], cosines: &[f32], sines: &[f32]) {
        let (x, y) = head.split_at_mut(cosines.len());
        let (y, sines) = (&mut y[..x.len()], &sines[..x.len()]);
        for i in 0..x.len() {
            (x[i], y[i]) = (x[i] * cosines[i] - y[i] * sines[i], y[i] * cosines[i] + x[i] * sines[i]);
        }
    }
}
