//! GELU: `x / 2 (1 + erf(x / sqrt(2)))` (Hendrycks and Gimpel 2016): x times the normal distribution function of x.

use std::f64::consts::PI;

use super::definition::{ActivationDefinition, names};

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "gelu",
    // Shazeer 2020.
    gate: "geglu",
    hugging_face: &["gelu"],
    elsewhere: &[],
    before: "before_gelu",
    operations: names!("gelu-erf"),
    value: |x| x * cumulative(x),
    slope: |x| cumulative(x) + x * density(x),
    keeps_result: false,
};

/// The normal cumulative distribution function: by the series of the integral near 0, by its continued fraction further
/// out.
fn cumulative(x: f64) -> f64 {
    let z = x.abs();
    let above = if z < 3.0 {
        let mut term = z;
        let mut sum = z;
        for n in 1..100 {
            term *= z * z / f64::from(2 * n + 1);
            sum += term;
        }
        0.5 - density(z) * sum
    } else {
        density(z) / (1..200).rev().fold(z, |rest, n| z + f64::from(n) / rest)
    };
    if x > 0.0 { 1.0 - above } else { above }
}

/// The normal probability density.
fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / (2.0 * PI).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_matches_reference_values() {
        assert!(((DEFINITION.value)(1.0) - 0.841_344_746_068_542_9).abs() < 1e-14);
        assert!(((DEFINITION.value)(-4.0) / -1.266_849_673_324_797e-4 - 1.0).abs() < 1e-9);
    }
}
