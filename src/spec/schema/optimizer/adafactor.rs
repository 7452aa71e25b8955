//! `[train.optimizer.adafactor]`

use std::ops::Bound::{Excluded, Included};

use super::{Decay, GROUPS, Group, SharedKeys, UpdateRule};
use crate::reader::declare::key_table;
use crate::reader::parsers::{FloatRange, HALF_ULP, NOT_NEGATIVE, POSITIVE, ROUNDS_TO_1, keyword};
use ops::Rule;

/// The weight of a new value in the running mean is the step number to this power.
const POWER: FloatRange =
    FloatRange { bounds: (Included(-100.0), Included(0.0)), expected: "a number from -100 to 0" };

/// The largest number whose square, of it as an f32, rounds to 0: it rounds to 2^-75.
const SQUARE_ROUNDS_TO_0: f64 = f64::from_bits((1023 - 75) << 52) * (1.0 + HALF_ULP);
/// The smallest number whose square, of it as an f32, rounds to infinity: it rounds to 2^64.
const SQUARE_ROUNDS_TO_INFINITY: f64 = f64::from_bits((1023 + 64) << 52) * ROUNDS_TO_1;

/// It is squared in f32.
const EPSILON: FloatRange = FloatRange {
    bounds: (Excluded(SQUARE_ROUNDS_TO_0), Excluded(SQUARE_ROUNDS_TO_INFINITY)),
    expected: "a number above 0 whose square fits in fp32, 1e-22 to 1e19",
};

key_table! {
    /// Adafactor: Adam's second moments factored into rows and columns, without momentum. PyTorch:
    /// `torch.optim.Adafactor`.
    pub struct Adafactor {
        /// Learning rate.
        pub lr: f64 = POSITIVE;
        /// Exponent of the step number in the decay of the second moments.
        pub beta2_decay: f64 = POWER, default -0.8;
        /// Lower bound of the square root of a second moment (`eps[0]`).
        pub epsilon: f64 = EPSILON, default f64::from(f32::EPSILON);
        /// Lower bound of a parameter's root mean square, which scales its update (`eps[1]`).
        pub scale_epsilon: f64 = POSITIVE, default 1e-3;
        /// Largest root mean square of an update (`d`).
        pub clip_threshold: f64 = POSITIVE, default 1.0;
        /// Decoupled weight decay.
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        /// Parameters that weight decay applies to.
        pub decay: Decay = keyword(), default Decay::Matrices;
        /// Parameter groups with their own learning rate or weight decay.
        pub groups: Vec<Group> = GROUPS, default Vec::new();
    }
}

impl UpdateRule for Adafactor {
    fn rule(&self, weight_decay: f32) -> Rule {
        Rule::Adafactor(ops::Adafactor {
            beta2_decay: self.beta2_decay,
            epsilon: self.epsilon as f32,
            scale_epsilon: self.scale_epsilon as f32,
            clip_threshold: self.clip_threshold as f32,
            weight_decay,
        })
    }

    fn shared(&self) -> SharedKeys<'_> {
        let Adafactor { lr, weight_decay, decay, ref groups, .. } = *self;
        SharedKeys { lr, weight_decay, decay, groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_epsilon_follow_its_square_in_f32() {
        for bound in [SQUARE_ROUNDS_TO_0, SQUARE_ROUNDS_TO_INFINITY] {
            for number in [bound.next_down(), bound, bound.next_up()] {
                let square = (number as f32) * (number as f32);
                assert_eq!(EPSILON.contains(number), square > 0.0 && square.is_finite(), "{number:e}");
            }
        }
    }
}
