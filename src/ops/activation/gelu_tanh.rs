//! `x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: GPT-2's approximation of GELU (Hendrycks and Gimpel 2016).

use std::f64::consts::PI;

use super::definition::{ActivationDefinition, names};

pub(super) const DEFINITION: ActivationDefinition = ActivationDefinition {
    word: "gelu_tanh",
    gate: "geglu_tanh",
    hugging_face: &["gelu_new", "gelu_pytorch_tanh"],
    elsewhere: &["gelu_approx", "gelu_approximate", "gelu_fast"],
    before: "before_gelu",
    operations: names!("gelu"),
    value: |x| x / 2.0 * (1.0 + tanh(x)),
    slope: |x| {
        let tanh = tanh(x);
        let inner = (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044715 * x * x);
        (1.0 + tanh) / 2.0 + x / 2.0 * (1.0 - tanh * tanh) * inner
    },
    keeps_result: false,
};

/// The tanh term of the approximation.
fn tanh(x: f64) -> f64 {
    ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()
}
