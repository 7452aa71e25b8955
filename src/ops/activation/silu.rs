//! `x / (1 + e^-x)` (Elfwing et al. 2017), also called swish (Ramachandran et al. 2017).

use super::definition::{ActivationDefinition, names};
use super::sigmoid::logistic;

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "silu",
    // Shazeer 2020.
    gate: "swiglu",
    hugging_face: &["silu", "swish"],
    elsewhere: &[],
    before: "before_silu",
    operations: names!("silu"),
    value: |x| x * logistic(x),
    slope: |x| logistic(x) + x * logistic(x) * (1.0 - logistic(x)),
    keeps_result: false,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silu_matches_reference_value() {
        assert!(((DEFINITION.value)(1.0) - 0.731_058_578_630_004_9).abs() < 1e-14);
    }
}
