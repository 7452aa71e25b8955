//! Operations on each element by itself.

use super::math::{gelu, gelu_slope};
use super::operands::Operands;
use super::simd::simd;
use super::workers::{Parts, Workers};

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// Works on an output that begins as another value, chunk by chunk: `work(output, other)`.
fn in_place(
    output: &mut [f32],
    source: Option<&[f32]>,
    other: &[f32],
    workers: &Workers,
    work: impl Fn(&mut [f32], &[f32]) + Sync,
) {
    assert_eq!(output.len(), other.len(), "operands of one shape");
    let output = Parts::new(output);
    workers.chunks(output.len(), CHUNK, |range| {
        // SAFETY: chunks do not overlap.
        #[allow(unsafe_code)]
        let part = unsafe { output.part(range.clone()) };
        if let Some(source) = source {
            part.copy_from_slice(&source[range.clone()]);
        }
        work(part, &other[range]);
    });
}

pub(super) fn add(operands: &mut Operands, workers: &Workers) {
    let (source, other) = (operands.source(0, 0), operands.input(1));
    in_place(operands.output(0), source, other, workers, |sum, b| add_to(workers.level(), sum, b));
}

pub(super) fn gelu_backward(operands: &mut Operands, workers: &Workers) {
    let (source, x) = (operands.source(0, 0), operands.input(1));
    in_place(operands.output(0), source, x, workers, |dx, x| scale_by_slope(workers.level(), dx, x));
}

simd! {
    pub(super) fn add_to(sum: &mut [f32], b: &[f32]) {
        for (sum, &b) in sum.iter_mut().zip(b) {
            *sum += b;
        }
    }
}

simd! {
    /// `dx *= gelu'(x)`
    pub(super) fn scale_by_slope(dx: &mut [f32], x: &[f32]) {
        for (dx, &x) in dx.iter_mut().zip(x) {
            *dx *= gelu_slope::<FUSED>(x);
        }
    }
}

simd! {
    pub(super) fn gelu_of(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = gelu::<FUSED>(x);
        }
    }
}

simd! {
    /// `y += gelu(x)`
    pub(super) fn gelu_add_to(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y += gelu::<FUSED>(x);
        }
    }
}
