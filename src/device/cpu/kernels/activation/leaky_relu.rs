//! Leaky ReLU.

use super::Function;

pub(super) struct LeakyRelu;

impl LeakyRelu {
    const BELOW: f32 = 0.01;
}

impl Function for LeakyRelu {
    const KEEPS_RESULT: bool = true;

    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        if x > 0.0 { x } else { Self::BELOW * x }
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(y: f32) -> f32 {
        if y > 0.0 { 1.0 } else { Self::BELOW }
    }
}
