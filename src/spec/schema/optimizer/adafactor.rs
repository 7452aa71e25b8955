//! `[train.optimizer.adafactor]`

use super::{Decay, GROUPS, Group, SharedKeys, UpdateRule};
use crate::reader::declare::key_table;
use crate::reader::parsers::{FloatRange, NOT_NEGATIVE, POSITIVE, keyword};
use ops::Rule;

/// The weight of a new value in the running mean is the step number to this power.
const POWER: FloatRange =
    FloatRange { holds: |number| (-100.0..=0.0).contains(&number), expected: "a number from -100 to 0" };

/// It is squared in f32.
const EPSILON: FloatRange = FloatRange {
    holds: |number| {
        let square = (number as f32) * (number as f32);
        number > 0.0 && square > 0.0 && square.is_finite()
    },
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
