//! What an activation says of itself.

/// All that there is to know of an activation outside of its kernels.
pub struct Definition {
    /// In experiment files.
    pub word: &'static str,
    /// Of a gate through it, in experiment files.
    pub gate: &'static str,
    /// In configurations of the transformers library.
    pub hugging_face: &'static [&'static str],
    /// In other tools, whatever they mean by it.
    pub elsewhere: &'static [&'static str],
    /// Of the value that goes into it.
    pub before: &'static str,
    pub operations: Names,
    /// `f(x)`, as it reads: what kernels are held to.
    pub value: fn(f64) -> f64,
    /// `f'(x)`
    pub slope: fn(f64) -> f64,
}

/// The operations with an activation in them, as `explain` prints them.
pub struct Names {
    pub add: &'static str,
    pub backward: &'static str,
    pub gate: &'static str,
    pub gate_backward: &'static str,
    pub linear: &'static str,
    pub linear_input_gradient: &'static str,
    pub linear_residual: &'static str,
}

/// These, by the activation's own.
macro_rules! names {
    ($name:literal) => {
        $crate::activation::definition::Names {
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
