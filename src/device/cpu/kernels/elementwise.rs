//! Operations on each element by itself.

use ops::{Activation, Add, Scale};

use super::activation::activate;
use super::float::{BUFFER, Float, update, write};
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{Parts, Workers};

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

pub(super) fn add<T: Float>(op: &Add, operands: &mut Operands, workers: &Workers) {
    if let Some(activation) = op.activation {
        return add_and_activate::<T>(activation, operands, workers);
    }
    let (source, other) = (operands.source::<T>(0, 0), operands.input::<T>(1));
    in_place(operands.output(0), source, other, workers, add_to);
}

/// The sum begins as a, what comes of it as b.
fn add_and_activate<T: Float>(activation: Activation, operands: &mut Operands, workers: &Workers) {
    let (a, b) = (operands.source::<T>(1, 0), operands.source::<T>(0, 1));
    let (y, sum) = (Parts::new(operands.output::<T>(0)), Parts::new(operands.output::<T>(1)));
    let level = workers.level();
    workers.chunks(y.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let [y, sum] = [&y, &sum].map(|whole| unsafe { whole.part(range.clone()) });
        for (part, source) in [(&mut *sum, a), (&mut *y, b)] {
            if let Some(source) = source {
                part.copy_from_slice(&source[range.clone()]);
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
    let source = operands.source::<T>(0, 0);
    let (output, level) = (Parts::new(operands.output::<T>(0)), workers.level());
    workers.chunks(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let part = unsafe { output.part(range.clone()) };
        if let Some(source) = source {
            part.copy_from_slice(&source[range]);
        }
        update(level, part, &mut [0.0; BUFFER], |_, part| scale_by(level, part, op.factor));
    });
}

/// Works on an output that begins as another value, chunk by chunk: `work(level, output, other)`.
pub(super) fn in_place<T: Float>(
    output: &mut [T],
    source: Option<&[T]>,
    other: &[T],
    workers: &Workers,
    work: impl Fn(Level, &mut [f32], &[f32]) + Sync,
) {
    assert_eq!(output.len(), other.len(), "operands of one shape");
    let (output, level) = (Parts::new(output), workers.level());
    workers.chunks(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let part = unsafe { output.part(range.clone()) };
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
    pub(super) fn scale_by(x: &mut [f32], factor: f32) {
        for x in x.iter_mut() {
            *x *= factor;
        }
    }
}
