//! `max(x, 0)^2` (So et al. 2021, "Primer").

use super::definition::{ActivationDefinition, names};

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "relu_squared",
    gate: "reglu_squared",
    hugging_face: &["relu2"],
    elsewhere: &["relu_sq", "squared_relu", "sqrelu"],
    before: "before_relu_squared",
    operations: names!("relu-squared"),
    value: |x| x.max(0.0).powi(2),
    slope: |x| 2.0 * x.max(0.0),
    keeps_result: false,
};
