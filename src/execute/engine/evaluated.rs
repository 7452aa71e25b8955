//! The figures of an evaluation.

use std::ops::AddAssign;

/// Of a micro-batch, or sums over samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Evaluated {
    pub(crate) loss: f64,
    /// The share of rows whose largest logit is the target's; `None` if the loss has no classes.
    pub(crate) accuracy: Option<f64>,
}

impl Evaluated {
    pub(crate) fn times(self, factor: f64) -> Evaluated {
        Evaluated { loss: self.loss * factor, accuracy: self.accuracy.map(|accuracy| accuracy * factor) }
    }
}

impl AddAssign for Evaluated {
    fn add_assign(&mut self, other: Evaluated) {
        self.loss += other.loss;
        self.accuracy = match (self.accuracy, other.accuracy) {
            (Some(sum), Some(other)) => Some(sum + other),
            (own, other) => own.or(other),
        };
    }
}
