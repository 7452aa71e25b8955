//! `[train.optimizer.adafactor]`

use super::{Decay, Group, Groups, Shared, UpdateRule};
use crate::declare::section;
use crate::kinds::{NOT_NEGATIVE, Number, POSITIVE, word};
use ops::Rule;

/// The share of a mean that is new falls as the step does to that power.
const POWER: Number =
    Number { holds: |number| (-100.0..=0.0).contains(&number), expected: "a number from -100 to 0" };

/// It is squared, in f32.
const EPSILON: Number = Number {
    holds: |number| {
        let square = (number as f32) * (number as f32);
        number > 0.0 && square > 0.0 && square.is_finite()
    },
    expected: "a number above 0 whose square is a number of fp32, 1e-22 to 1e19",
};

section! {
    /// Adam's variances as products of those of rows and of columns, without momentum, as PyTorch has it.
    pub struct Adafactor {
        pub lr: f64 = POSITIVE;
        pub beta2_decay: f64 = POWER, default -0.8;
        /// The least that the root of a variance counts.
        pub epsilon: f64 = EPSILON, default f64::from(f32::EPSILON);
        /// The least that a parameter's root mean square counts.
        pub scale_epsilon: f64 = POSITIVE, default 1e-3;
        pub clip_threshold: f64 = POSITIVE, default 1.0;
        pub weight_decay: f64 = NOT_NEGATIVE, default 0.0;
        pub decay: Decay = word(), default Decay::Matrices;
        pub groups: Vec<Group> = Groups, default Vec::new();
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

    fn shared(&self) -> Shared<'_> {
        let Adafactor { lr, weight_decay, decay, ref groups, .. } = *self;
        Shared { lr, weight_decay, decay, groups }
    }
}
