//! `max(x, 0)` (Nair and Hinton 2010).

use super::definition::{ActivationDefinition, names};

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "relu",
    // Shazeer 2020.
    gate: "reglu",
    hugging_face: &["relu"],
    elsewhere: &[],
    before: "before_relu",
    operations: names!("relu"),
    value: |x| x.max(0.0),
    slope: |x| f64::from(x > 0.0),
    keeps_result: true,
};
