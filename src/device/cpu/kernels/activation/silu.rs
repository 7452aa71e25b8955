//! SiLU.

use super::Function;
use crate::cpu::kernels::math::{exp, multiply_add};

pub(super) struct Silu;

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
