//! GELU with the error function.

use super::Function;
use crate::cpu::kernels::math::{exp, multiply_add};

pub(super) struct Gelu;

impl Gelu {
    /// The cumulative normal distribution at x, and `e^(-x^2 / 2)`.
    #[inline(always)]
    fn normal<const FUSED: bool>(x: f32) -> (f32, f32) {
        /// A polynomial in `t = 1 / (1 + 0.3 |x|)` for the upper tail at |x| over `t e^(-x^2 / 2)`, fitted for |x| up
        /// to 13 to a relative error of at most 1.2e-7.
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
