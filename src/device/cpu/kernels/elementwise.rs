//! Elementwise operations.

use ops::{Activation, Add, Scale};

use super::activation::activate;
use super::float::{BUFFER, Float, update, write};
use super::math::sum;
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

/// Elements per task.
const CHUNK: usize = 1 << 14;

pub(super) fn add<T: Float>(op: &Add, operands: &mut Operands, workers: &Workers) {
    if let Some(activation) = op.activation {
        return add_and_activate::<T>(activation, operands, workers);
    }
    let (source, other) = (operands.input_unless_aliased::<T>(0, 0), operands.input::<T>(1));
    in_place(operands.output(0), source, other, workers, add_to);
}

/// `sum = a + b`, `y = activation(sum)`. The sum may share memory with a, and y with b.
fn add_and_activate<T: Float>(activation: Activation, operands: &mut Operands, workers: &Workers) {
    let (a, b) = (operands.input_unless_aliased::<T>(1, 0), operands.input_unless_aliased::<T>(0, 1));
    let (y, sum) = (SharedSlice::new(operands.output::<T>(0)), SharedSlice::new(operands.output::<T>(1)));
    let level = workers.level();
    workers.for_each_chunk(y.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let [y, sum] = [&y, &sum].map(|whole| unsafe { whole.range_mut(range.clone()) });
        for (output, source) in [(&mut *sum, a), (&mut *y, b)] {
            if let Some(source) = source {
                output.copy_from_slice(&source[range.clone()]);
            }
        }
        let mut other = [0.0; BUFFER];
        for (y, sum) in y.chunks_mut(BUFFER).zip(sum.chunks_mut(BUFFER)) {
            update(level, sum, &mut [0.0; BUFFER], |run, sum| {
                let other = &mut other[..sum.len()];
                T::widen(level, &y[run.clone()], other);
                add_to(level, sum, other);
                write(level, &mut y[run], &mut [0.0; BUFFER], |run, y| {
                    activate(level, activation, y, &sum[run]);
                });
            });
        }
    });
}

pub(super) fn scale<T: Float>(op: &Scale, operands: &mut Operands, workers: &Workers) {
    map::<T>(operands, workers, |level, part| scale_by(level, part, op.factor));
}

/// Applies `work(level, elements)` to the only input, part by part.
pub(super) fn map<T: Float>(
    operands: &mut Operands,
    workers: &Workers,
    work: impl Fn(Level, &mut [f32]) + Sync,
) {
    let source = operands.input_unless_aliased::<T>(0, 0);
    let (output, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    workers.for_each_chunk(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let part = unsafe { output.range_mut(range.clone()) };
        if let Some(source) = source {
            part.copy_from_slice(&source[range]);
        }
        update(level, part, &mut [0.0; BUFFER], |_, part| work(level, part));
    });
}

/// Calls `work(level, output, other)` chunk by chunk. The output first holds `source`, or its present contents if that
/// is `None`.
pub(super) fn in_place<T: Float>(
    output: &mut [T],
    source: Option<&[T]>,
    other: &[T],
    workers: &Workers,
    work: impl Fn(Level, &mut [f32], &[f32]) + Sync,
) {
    assert_eq!(output.len(), other.len(), "operands of equal shape");
    let (output, level) = (SharedSlice::new(output), workers.level());
    workers.for_each_chunk(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let part = unsafe { output.range_mut(range.clone()) };
        if let Some(source) = source {
            part.copy_from_slice(&source[range.clone()]);
        }
        let other = &other[range];
        let (mut changed, mut read) = ([0.0; BUFFER], [0.0; BUFFER]);
        update(level, part, &mut changed, |run, part| {
            work(level, part, T::widened(level, &other[run], &mut read));
        });
    });
}

simd! {
    pub(super) fn add_to(sum: &mut [f32], b: &[f32]) {
        for (sum, &b) in sum.iter_mut().zip(b) {
            *sum += b;
        }
    }
}

simd! {
    pub(super) fn add_scaled_to(sum: &mut [f32], b: &[f32], factor: f32) {
        for (sum, &b) in sum.iter_mut().zip(b) {
            *sum += b * factor;
        }
    }
}

simd! {
    pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
        let b = &b[..a.len()];
        sum(a.len(), |i| a[i] * b[i])
    }
}

simd! {
    pub(super) fn scale_by(x: &mut [f32], factor: f32) {
        for x in x.iter_mut() {
            *x *= factor;
        }
    }
}
