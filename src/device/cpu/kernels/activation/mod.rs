//! Activation functions, their derivatives, and gated activations. A new activation needs a file here and an entry in
//! `with_function`.

mod gelu;
mod gelu_tanh;
mod leaky_relu;
mod relu;
mod relu_squared;
mod sigmoid;
mod silu;
mod tanh;

use ops::{Activate, Activation, ActivationBackward, Gated, GatedBackward};

use gelu::Gelu;
use gelu_tanh::GeluTanh;
use leaky_relu::LeakyRelu;
use relu::Relu;
use relu_squared::ReluSquared;
use sigmoid::Sigmoid;
use silu::Silu;
use tanh::Tanh;

use super::elementwise::{in_place, map};
use super::float::{BUFFER, Float, read, write};
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{SharedSlice, Workers};

/// Rows per task.
const ROWS: usize = 16;

/// An activation function and its derivative.
trait Function {
    /// Whether the saved value is f(x) instead of x.
    const KEEPS_RESULT: bool = false;

    fn value<const FUSED: bool>(x: f32) -> f32;

    fn slope<const FUSED: bool>(saved: f32) -> f32;
}

/// Evaluates an expression in which a type name stands for the function of an activation.
macro_rules! with_function {
    ($activation:expr, $function:ident => $body:expr) => {
        with_function!($activation, $function => $body, [
            GeluTanh, Gelu, Relu, ReluSquared, Silu, Tanh, Sigmoid, LeakyRelu
        ])
    };
    ($activation:expr, $function:ident => $body:expr, [$($name:ident),+]) => {
        match $activation {
            $(Activation::$name => {
                type $function = $name;
                $body
            })+
        }
    };
}

simd! {
    /// `y = f(x)`
    pub(super) fn activate(activation: Activation, y: &mut [f32], x: &[f32]) {
        with_function!(activation, F => for (y, &x) in y.iter_mut().zip(x) {
            *y = F::value::<FUSED>(x);
        });
    }
}

simd! {
    /// `y += f(x)`
    pub(super) fn activate_onto(activation: Activation, y: &mut [f32], x: &[f32]) {
        with_function!(activation, F => for (y, &x) in y.iter_mut().zip(x) {
            *y += F::value::<FUSED>(x);
        });
    }
}

simd! {
    /// `dx *= f'(x)`
    pub(super) fn scale_by_slope(activation: Activation, dx: &mut [f32], saved: &[f32]) {
        with_function!(activation, F => for (dx, &saved) in dx.iter_mut().zip(saved) {
            *dx *= F::slope::<FUSED>(saved);
        });
    }
}

simd! {
    /// `y = f(gate) * up`
    fn gate_of(activation: Activation, y: &mut [f32], gate: &[f32], up: &[f32]) {
        let (gate, up) = (&gate[..y.len()], &up[..y.len()]);
        with_function!(activation, F => for i in 0..y.len() {
            y[i] = F::value::<FUSED>(gate[i]) * up[i];
        });
    }
}

simd! {
    /// In: gate and up projections. Out: their gradients.
    fn gate_gradients(activation: Activation, dy: &[f32], gate: &mut [f32], up: &mut [f32]) {
        let (gate, up) = (&mut gate[..dy.len()], &mut up[..dy.len()]);
        with_function!(activation, F => for i in 0..dy.len() {
            let (g, u, y) = (gate[i], up[i], F::value::<FUSED>(gate[i]));
            gate[i] = dy[i] * u * F::slope::<FUSED>(if F::KEEPS_RESULT { y } else { g });
            up[i] = dy[i] * y;
        });
    }
}

simd! {
    /// `x = f(x)`
    fn activate_in_place(activation: Activation, x: &mut [f32]) {
        with_function!(activation, F => for x in x.iter_mut() {
            *x = F::value::<FUSED>(*x);
        });
    }
}

pub(super) fn forward<T: Float>(op: &Activate, operands: &mut Operands, workers: &Workers) {
    map::<T>(operands, workers, |level, part| activate_in_place(level, op.activation, part));
}

pub(super) fn backward<T: Float>(op: &ActivationBackward, operands: &mut Operands, workers: &Workers) {
    let (source, saved) = (operands.input_unless_aliased::<T>(0, 0), operands.input::<T>(1));
    let work = |level: Level, dx: &mut [f32], saved: &[f32]| scale_by_slope(level, op.activation, dx, saved);
    in_place(operands.output(0), source, saved, workers, work);
}

pub(super) fn gated<T: Float>(op: &Gated, operands: &mut Operands, workers: &Workers) {
    let (both, width) = (operands.input::<T>(0), operands.output_type(0).shape.last());
    let (y, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    workers.for_each_chunk(y.len() / width, ROWS, |rows| {
        // SAFETY: chunks of rows do not overlap.
        #[allow(unsafe_code)]
        let y = unsafe { y.range_mut(rows.start * width..rows.end * width) };
        let both = both[2 * rows.start * width..2 * rows.end * width].chunks_exact(2 * width);
        let [mut buffer, mut gates, mut ups] = [[0.0; BUFFER]; 3];
        for (y, both) in y.chunks_exact_mut(width).zip(both) {
            let (gate, up) = both.split_at(width);
            write(level, y, &mut buffer, |run, y| {
                let gate = T::widened(level, &gate[run.clone()], &mut gates);
                gate_of(level, op.activation, y, gate, T::widened(level, &up[run], &mut ups));
            });
        }
    });
}

pub(super) fn gated_backward<T: Float>(op: &GatedBackward, operands: &mut Operands, workers: &Workers) {
    let (dy, width) = (operands.input::<T>(0), operands.input_type(0).shape.last());
    let source = operands.input_unless_aliased::<T>(0, 1);
    let (dboth, level) = (SharedSlice::new(operands.output::<T>(0)), workers.level());
    workers.for_each_chunk(dy.len() / width, ROWS, |rows| {
        let elements = 2 * rows.start * width..2 * rows.end * width;
        // SAFETY: chunks of rows do not overlap.
        #[allow(unsafe_code)]
        let dboth = unsafe { dboth.range_mut(elements.clone()) };
        if let Some(source) = source {
            dboth.copy_from_slice(&source[elements]);
        }
        let dy = dy[rows.start * width..rows.end * width].chunks_exact(width);
        let [mut buffer, mut gates, mut ups] = [[0.0; BUFFER]; 3];
        for (dboth, dy) in dboth.chunks_exact_mut(2 * width).zip(dy) {
            let (gate, up) = dboth.split_at_mut(width);
            read(level, dy, &mut buffer, |run, dy| {
                let (gate, up) = (&mut gate[run.clone()], &mut up[run]);
                // For f32, `read` passes the whole row at once.
                if let (Some(gate), Some(up)) = (T::as_f32_mut(gate), T::as_f32_mut(up)) {
                    return gate_gradients(level, op.activation, dy, gate, up);
                }
                let (wide_gate, wide_up) = (&mut gates[..dy.len()], &mut ups[..dy.len()]);
                T::widen(level, gate, wide_gate);
                T::widen(level, up, wide_up);
                gate_gradients(level, op.activation, dy, wide_gate, wide_up);
                T::narrow(level, wide_gate, gate);
                T::narrow(level, wide_up, up);
            });
        }
    });
}
