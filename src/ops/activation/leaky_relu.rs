//! `x` above 0, `0.01 x` below (Maas et al. 2013).

use super::definition::{ActivationDefinition, names};

/// PyTorch's default.
const BELOW: f64 = 0.01;

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "leaky_relu",
    gate: "leaky_reglu",
    hugging_face: &["leaky_relu"],
    elsewhere: &["lrelu", "leakyrelu"],
    before: "before_leaky_relu",
    operations: names!("leaky-relu"),
    value: |x| if x > 0.0 { x } else { BELOW * x },
    // y has the sign of x.
    slope: |y| if y > 0.0 { 1.0 } else { BELOW },
    keeps_result: true,
};
