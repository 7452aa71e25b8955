//! The logistic function `1 / (1 + e^-x)`.

use super::definition::{ActivationDefinition, names};

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "sigmoid",
    // Dauphin et al. 2017.
    gate: "glu",
    hugging_face: &["sigmoid"],
    elsewhere: &["logistic"],
    before: "before_sigmoid",
    operations: names!("sigmoid"),
    value: logistic,
    slope: |y| y * (1.0 - y),
    keeps_result: true,
};

pub(super) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
