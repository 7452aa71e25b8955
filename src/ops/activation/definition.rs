//! The declarations of an activation.

/// Names, value and derivative of an activation. Its kernels are elsewhere.
pub struct ActivationDefinition {
    /// Its keyword in experiment files.
    pub word: &'static str,
    /// The keyword of its gated form in experiment files.
    pub gate: &'static str,
    /// Its names in configurations of the transformers library.
    pub hugging_face: &'static [&'static str],
    /// Names in other tools, used for hints only.
    pub elsewhere: &'static [&'static str],
    /// The name of its input value.
    pub before: &'static str,
    pub operations: Names,
    /// `f(x)`: the reference for kernels.
    pub value: fn(f64) -> f64,
    /// `f'(x)`, as a function of the saved value.
    pub slope: fn(f64) -> f64,
    /// Whether the saved value, which backward reads, is the result f(x) instead of the input x, which is then freed
    /// after forward.
    pub keeps_result: bool,
}

impl ActivationDefinition {
    /// The value that backward reads, for input x.
    pub fn saved(&self, x: f64) -> f64 {
        if self.keeps_result { (self.value)(x) } else { x }
    }
}

/// Names of the operations that contain the activation, as `explain` prints them.
pub struct Names {
    pub plain: &'static str,
    pub add: &'static str,
    pub backward: &'static str,
    pub gate: &'static str,
    pub gate_backward: &'static str,
    pub linear: &'static str,
    pub linear_input_gradient: &'static str,
    pub linear_residual: &'static str,
}

/// `Names` derived from the activation's name.
macro_rules! names {
    ($name:literal) => {
        $crate::activation::definition::Names {
            plain: $name,
            add: concat!("add-", $name),
            backward: concat!($name, "-backward"),
            gate: concat!($name, "-gate"),
            gate_backward: concat!($name, "-gate-backward"),
            linear: concat!("linear-", $name),
            linear_input_gradient: concat!("linear-input-gradient-", $name),
            linear_residual: concat!("linear-", $name, "-residual"),
        }
    };
}

pub(super) use names;
