//! The hyperbolic tangent.

use super::Function;
use crate::cpu::kernels::math::tanh;

pub(super) struct Tanh;

impl Function for Tanh {
    const KEEPS_RESULT: bool = true;

    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        tanh::<FUSED>(x)
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(y: f32) -> f32 {
        1.0 - y * y
    }
}
