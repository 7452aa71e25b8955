//! GELU in its tanh approximation.

use super::Function;
use crate::cpu::kernels::math::{exp, multiply_add};

pub(super) struct GeluTanh;

impl GeluTanh {
    /// `sqrt(8 / pi)`: twice the factor in GELU's definition, because `(1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))`.
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
