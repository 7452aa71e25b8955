//! ReLU.

use super::Function;

pub(super) struct Relu;

impl Function for Relu {
    const KEEPS_RESULT: bool = true;

    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(x: f32) -> f32 {
        if x > 0.0 { 1.0 } else { 0.0 }
    }
}
