//! Squared ReLU.

use super::{Function, Relu};

pub(super) struct ReluSquared;

impl Function for ReluSquared {
    #[inline(always)]
    fn value<const FUSED: bool>(x: f32) -> f32 {
        let above = Relu::value::<FUSED>(x);
        above * above
    }

    #[inline(always)]
    fn slope<const FUSED: bool>(x: f32) -> f32 {
        2.0 * Relu::value::<FUSED>(x)
    }
}
