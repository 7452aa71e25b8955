//! Functions of each element, their slopes, and gates made of them. A new one is a type here and its line in
//! `with_function`.

use crate::ops::{Activation, ActivationBackward, Gated, GatedBackward};

use super::elementwise::in_place;
use super::float::{BUFFER, Float, read, write};
use super::math::{exp, multiply_add};
use super::operands::Operands;
use super::simd::{Level, simd};
use super::workers::{Parts, Workers};

/// Rows that a thread takes at a time.
const ROWS: usize = 16;

/// A function of each element.
trait Function {
    fn value<const FUSED: bool>(x: f32) -> f32;

    fn slope<const FUSED: bool>(x: f32) -> f32;
}

/// Evaluates an expression with a type's name standing for the function of an activation.
macro_rules! with_function {
    ($activation:expr, $function:ident => $body:expr) => {
        match $activation {
            Activation::Gelu => {
                type $function = Gelu;
                $body
            }
            Activation::GeluTanh => {
                type $function = GeluTanh;
                $body
            }
            Activation::Relu => {
                type $function = Relu;
                $body
            }
            Activation::Silu => {
                type $function = Silu;
                $body
            }
        }
    };
}

struct Gelu;

impl Gelu {
    /// The share of normal numbers below x, and `e^(-x^2 / 2)`.
    #[inline(always)]
    fn normal<const FUSED: bool>(x: f32) -> (f32, f32) {
        /// Of the share above |x| over `t e^(-x^2 / 2)`, `t = 1 / (1 + 0.3 |x|)`: fitted for |x| up to 13 to a relative
        /// error of 1.2e-7 at the most.
        const COEFFICIENTS: [f32; 8] = [
            0.119_624_54,
            0.120_826_32,
            0.099_465_04,
            0.130_032_72,
            -0.056_450_31,
            0.209_346_65,
            -0.158_933_91,
            0.036_088_884,
        ];
        let power = exp::<FUSED>(-0.5 * x * x);
        let t = 1.0 / multiply_add::<FUSED>(0.3, x.abs(), 1.0);
        let mut sum = COEFFICIENTS[7];
        for coefficient in COEFFICIENTS[..7].iter().rev() {
            sum = multiply_add::<FUSED>(sum, t, *coefficient);
        }
        let above = sum * t * power;
        (if x > 0.0 { 1.0 - above } else { above }, power)
    }
}

impl Function for Gelu {
    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        x * Gelu::normal::<FUSED>(x).0
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(x: f32) -> f32 {
        const DENSITY: f32 = 0.398_942_3; // 1 / sqrt(2 pi)
        let (below, power) = Gelu::normal::<FUSED>(x);
        multiply_add::<FUSED>(x, DENSITY * power, below)
    }
}

struct GeluTanh;

impl GeluTanh {
    /// `sqrt(8 / pi)`: twice GELU's, because `(1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))`.
    const SLOPE: f32 = 1.595_769;
    const CUBE: f32 = 0.044_715;

    /// `1 + e^(-2u)`, from x and its square.
    #[inline(always)]
    fn divisor<const FUSED: bool>(x: f32, square: f32) -> f32 {
        1.0 + exp::<FUSED>(x * multiply_add::<FUSED>(square, -Self::SLOPE * Self::CUBE, -Self::SLOPE))
    }
}

impl Function for GeluTanh {
    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        x / GeluTanh::divisor::<FUSED>(x, x * x)
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(x: f32) -> f32 {
        let square = x * x;
        let s = 1.0 / GeluTanh::divisor::<FUSED>(x, square);
        let inner = multiply_add::<FUSED>(square, 3.0 * Self::SLOPE * Self::CUBE, Self::SLOPE);
        // s + x s (1 - s) du/dx
        multiply_add::<FUSED>(x * s * inner, 1.0 - s, s)
    }
}

struct Relu;

impl Function for Relu {
    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { 0.0 }
    }
}

struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        x / (1.0 + exp::<FUSED>(-x))
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(x: f32) -> f32 {
        let s = 1.0 / (1.0 + exp::<FUSED>(-x));
        multiply_add::<FUSED>(x * s, 1.0 - s, s)
    }
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
    pub(super) fn scale_by_slope(activation: Activation, dx: &mut [f32], x: &[f32]) {
        with_function!(activation, F => for (dx, &x) in dx.iter_mut().zip(x) {
            *dx *= F::slope::<FUSED>(x);
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
    /// In: a gate and what it lets through. Out: their gradients.
    fn gate_gradients(activation: Activation, dy: &[f32], gate: &mut [f32], up: &mut [f32]) {
        let (gate, up) = (&mut gate[..dy.len()], &mut up[..dy.len()]);
        with_function!(activation, F => for i in 0..dy.len() {
            let (g, u) = (gate[i], up[i]);
            gate[i] = dy[i] * u * F::slope::<FUSED>(g);
            up[i] = dy[i] * F::value::<FUSED>(g);
        });
    }
}

pub(super) fn backward<T: Float>(op: &ActivationBackward, operands: &mut Operands, workers: &Workers) {
    let (source, x) = (operands.source::<T>(0, 0), operands.input::<T>(1));
    let work = |level: Level, dx: &mut [f32], x: &[f32]| scale_by_slope(level, op.activation, dx, x);
    in_place(operands.output(0), source, x, workers, work);
}

pub(super) fn gated<T: Float>(op: &Gated, operands: &mut Operands, workers: &Workers) {
    let (both, width) = (operands.input::<T>(0), operands.output_type(0).shape.last());
    let (y, level) = (Parts::new(operands.output::<T>(0)), workers.level());
    workers.chunks(y.len() / width, ROWS, |rows| {
        // SAFETY: runs of rows do not overlap.
        #[allow(unsafe_code)]
        let y = unsafe { y.part(rows.start * width..rows.end * width) };
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
    let source = operands.source::<T>(0, 1);
    let (dboth, level) = (Parts::new(operands.output::<T>(0)), workers.level());
    workers.chunks(dy.len() / width, ROWS, |rows| {
        let elements = 2 * rows.start * width..2 * rows.end * width;
        // SAFETY: runs of rows do not overlap.
        #[allow(unsafe_code)]
        let dboth = unsafe { dboth.part(elements.clone()) };
        if let Some(source) = source {
            dboth.copy_from_slice(&source[elements]);
        }
        let dy = dy[rows.start * width..rows.end * width].chunks_exact(width);
        let [mut buffer, mut gates, mut ups] = [[0.0; BUFFER]; 3];
        for (dboth, dy) in dboth.chunks_exact_mut(2 * width).zip(dy) {
            let (gate, up) = dboth.split_at_mut(width);
            read(level, dy, &mut buffer, |run, dy| {
                let (gate, up) = (&mut gate[run.clone()], &mut up[run]);
                // Of f32, there is one run, of the whole row.
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
