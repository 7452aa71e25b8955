//! Dynamic loss scaling for half-precision training (Micikevicius et al. 2018).
//!
//! The scale lives in device memory, because the device decides which steps are skipped.

use super::{Operation, TensorType, TypeError, expect_inputs, expect_type};

/// The type of the loss scale, the factor of the loss and of every gradient.
pub const SCALE: TensorType = TensorType::scalar();

/// Elements of the value that holds the `StepCounts`.
pub const STEP_COUNTS_LEN: usize = 2;

/// Counts of accepted and skipped steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepCounts {
    /// Consecutive steps with finite gradients since the last change of the scale.
    pub good: f32,
    /// Total steps skipped because of non-finite gradients.
    pub skipped: f32,
}

impl StepCounts {
    pub fn to_array(self) -> [f32; STEP_COUNTS_LEN] {
        [self.good, self.skipped]
    }

    pub fn from_array([good, skipped]: [f32; STEP_COUNTS_LEN]) -> StepCounts {
        StepCounts { good, skipped }
    }
}

/// Updates the loss scale once per step. A non-finite norm multiplies the scale by `backoff` and counts a skipped step;
/// `interval` consecutive finite norms multiply it by `growth`. With both factors 1 the scale is static.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    pub backoff: f32,
    pub growth: f32,
    pub interval: f32,
}

impl LossScale {
    /// Scale and counts after a step with this gradient norm.
    pub fn next(&self, scale: f32, counts: StepCounts, norm: f32) -> (f32, StepCounts) {
        let StepCounts { good, skipped } = counts;
        if !norm.is_finite() {
            return (scale * self.backoff, StepCounts { good: 0.0, skipped: skipped + 1.0 });
        }
        if good + 1.0 < self.interval {
            return (scale, StepCounts { good: good + 1.0, skipped });
        }
        // With an infinite scale, every later step would be skipped.
        let grown = scale * self.growth;
        (if grown.is_finite() { grown } else { scale }, StepCounts { good: 0.0, skipped })
    }
}

impl Operation for LossScale {
    fn name(&self) -> &'static str {
        "loss-scale"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 3)?;
        let counts = TensorType::f32(&[STEP_COUNTS_LEN]);
        expect_type(self.name(), "scale", &inputs[0], SCALE)?;
        expect_type(self.name(), "counts", &inputs[1], counts)?;
        expect_type(self.name(), "norm", &inputs[2], TensorType::scalar())?;
        Ok(vec![SCALE, counts])
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        &[(0, 0), (1, 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: LossScale = LossScale { backoff: 0.5, growth: 2.0, interval: 3.0 };

    /// The scale and the number of skipped steps after steps with these norms.
    fn after(op: LossScale, norms: &[f32]) -> (f32, f32) {
        let start = (1024.0, StepCounts::default());
        let (scale, counts) = norms.iter().fold(start, |(scale, counts), &norm| op.next(scale, counts, norm));
        (scale, counts.skipped)
    }

    #[test]
    fn scale_halves_on_overflow_and_doubles_after_finite_steps() {
        assert_eq!(after(DYNAMIC, &[1.0, 1.0]), (1024.0, 0.0));
        assert_eq!(after(DYNAMIC, &[1.0, 1.0, 1.0]), (2048.0, 0.0));
        assert_eq!(after(DYNAMIC, &[1.0, 1.0, f32::NAN, 1.0, 1.0]), (512.0, 1.0));
        assert_eq!(after(DYNAMIC, &[f32::INFINITY, f32::NAN, 1.0, 1.0, 1.0]), (512.0, 2.0));
    }

    #[test]
    fn static_scale_never_changes() {
        let fixed = LossScale { backoff: 1.0, growth: 1.0, interval: 1.0 };
        assert_eq!(after(fixed, &[1.0, f32::NAN, 1.0]), (1024.0, 1.0));
    }
}
