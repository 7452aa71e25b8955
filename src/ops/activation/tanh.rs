//! The hyperbolic tangent.

use super::definition::{ActivationDefinition, names};

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "tanh",
    // Dauphin et al. 2017.
    gate: "gtu",
    hugging_face: &["tanh"],
    elsewhere: &[],
    before: "before_tanh",
    operations: names!("tanh"),
    value: f64::tanh,
    slope: |y| 1.0 - y * y,
    keeps_result: true,
};
