//! The logistic function.

use super::Function;
use crate::cpu::kernels::math::exp;

pub(super) struct Sigmoid;

impl Function for Sigmoid {
    const KEEPS_RESULT: bool = true;

    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        1.0 / (1.0 + exp::<FUSED>(-x))
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(y: f32) -> f32 {
        y * (1.0 - y)
    }
}
