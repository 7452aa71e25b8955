//! `x / (1 + e^-x)` (Elfwing et al. 2017), also called swish (Ramachandran et al. 2017).

use super::definition::{Definition, names};

pub(super) const DEFINITION: Definition = Definition {
    word: "silu",
    // Shazeer 2020.
    gate: "swiglu",
    hugging_face: &["silu", "swish"],
    elsewhere: &[],
    before: "before_silu",
    operations: names!("silu"),
    value: |x| x * share(x),
    slope: |x| share(x) + x * share(x) * (1.0 - share(x)),
};

/// The logistic function.
fn share(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_value_of_silu() {
        assert!(((DEFINITION.value)(1.0) - 0.731_058_578_630_004_9).abs() < 1e-14);
    }
}
