//! Element-wise activations, plain or gated. A new activation is one file here, two lines below, and its kernels.

mod definition;
mod gelu;
mod gelu_tanh;
mod leaky_relu;
mod relu;
mod relu_squared;
mod sigmoid;
mod silu;
mod tanh;

use super::{
    Op, Operand, Operation, OutputRole, Tape, TensorType, TypeError, ValueId, expect_float, expect_inputs,
    expect_type,
};

pub use definition::ActivationDefinition;

/// The activations with their modules, one per line. Messages list them in this order.
macro_rules! activations {
    ($($name:ident in $file:ident),+ $(,)?) => {
        /// An element-wise function `f(x)`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Activation {
            $($name),+
        }

        impl Activation {
            pub const ALL: [Activation; [$(Activation::$name),+].len()] = [$(Activation::$name),+];

            pub const fn definition(self) -> &'static ActivationDefinition {
                match self {
                    $(Activation::$name => &$file::DEFINITION),+
                }
            }
        }
    };
}

activations! {
    GeluTanh in gelu_tanh,
    Gelu in gelu,
    Relu in relu,
    ReluSquared in relu_squared,
    Silu in silu,
    Tanh in tanh,
    Sigmoid in sigmoid,
    LeakyRelu in leaky_relu,
}

impl Activation {
    /// Returns the gradient of the activation's input (output 1 of the node) from `dy`, the gradient of output 0. If
    /// output 0 is the activation's result, `dy` has no other reader, and the matmul that produced it may apply the
    /// derivative itself.
    pub(super) fn backward(self, tape: &mut dyn Tape, dy: ValueId, is_result: bool) -> ValueId {
        let saved = match (self.definition().keeps_result, is_result) {
            (true, true) => tape.output(0),
            (true, false) => {
                let before = vec![tape.output(1)];
                tape.emit(Op::Activate(Activate { activation: self }), before, &[OutputRole::Like(0)])[0]
            }
            (false, _) => tape.output(1),
        };
        let fused = if is_result { tape.fuse_slope(self, saved) } else { None };
        fused.unwrap_or_else(|| {
            let slope = Op::ActivationBackward(ActivationBackward { activation: self });
            tape.emit(slope, vec![dy, saved], &[OutputRole::Like(0)])[0]
        })
    }
}

/// `y = f(x)`. Input: x num. Output: y, of the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activate {
    pub activation: Activation,
}

/// `dx = dy * f'(x)`. Inputs: dy, and the saved value of the activation (x or f(x)), num of the same shape. Output: dx, of
/// the same shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationBackward {
    pub activation: Activation,
}

/// `y = f(gate) * up` (Shazeer 2020). Input: gate and up side by side, num[..,2F]. Output: y num[..,F].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gated {
    pub activation: Activation,
}

/// Gradients of [`Gated`]. Inputs: dy num[..,F], gate and up num[..,2F]. Output: their gradients num[..,2F].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedBackward {
    pub activation: Activation,
}

impl Operation for Activate {
    fn name(&self) -> &'static str {
        self.activation.definition().operations.plain
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        expect_float(self.name(), "x", &inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if tape.wants(0) {
            let saved =
                if self.activation.definition().keeps_result { tape.output(0) } else { tape.input(0) };
            let inputs = vec![tape.output_gradient(0), saved];
            let op = Op::ActivationBackward(ActivationBackward { activation: self.activation });
            tape.contribute(op, inputs, 0, 0, &[]);
        }
    }
}

impl Operation for ActivationBackward {
    fn name(&self) -> &'static str {
        self.activation.definition().operations.backward
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_type(self.name(), "the saved value", &inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }
}

impl Operation for Gated {
    fn name(&self) -> &'static str {
        self.activation.definition().operations.gate
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        expect_float(self.name(), "gate and up", &inputs[0])?;
        Ok(vec![half(self.name(), &inputs[0])?])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn rowwise(&self) -> Option<&'static [usize]> {
        Some(&[0])
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if tape.wants(0) {
            let inputs = vec![tape.output_gradient(0), tape.input(0)];
            let op = Op::GatedBackward(GatedBackward { activation: self.activation });
            tape.contribute(op, inputs, 0, 1, &[]);
        }
    }
}

impl Operation for GatedBackward {
    fn name(&self) -> &'static str {
        self.activation.definition().operations.gate_backward
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_float(self.name(), "gate and up", &inputs[1])?;
        expect_type(self.name(), "dy", &inputs[0], half(self.name(), &inputs[1])?)?;
        Ok(vec![inputs[1]])
    }

    /// The kernel reads gate and up before it writes their gradients.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 1)]
    }
}

/// The type of the gate and of up: half the columns of `both`.
fn half(operation: &'static str, both: &TensorType) -> Result<TensorType, TypeError> {
    let columns = both.shape.last();
    if !columns.is_multiple_of(2) {
        return Err(TypeError {
            operation,
            problem: format!("gate and up are {both}, expected an even number of columns"),
        });
    }
    Ok(TensorType { shape: both.shape.with_last(columns / 2), ..*both })
}
