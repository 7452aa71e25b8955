//! Matrix products with what is usually fused to them. Weights are stored `[out, in]`, as PyTorch does.

use super::{Op, Operation, Tape, TensorType, TypeError, WorkspaceLimits, expect_inputs, expect_type};
use crate::ops::elementwise::GeluBackward;

/// What follows the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, GPT-2's.
    GeluTanh,
}

/// `y = activation(x W^T + bias) + residual`
///
/// Inputs: x f32[..,K], weight f32[M,K], then bias f32[M] and residual f32[..,M] where there are any.
/// Outputs: y f32[..,M] and, with an activation, what went into it f32[..,M].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    pub bias: bool,
    pub activation: Option<Activation>,
    pub residual: bool,
}

/// `dx = dy W`, added to the gradient so far with `accumulate`, times the slope of the activation that made x.
///
/// Inputs: dy f32[..,M], weight f32[M,K], then dx so far f32[..,K] and what went into the activation f32[..,K].
/// Output: dx f32[..,K], with an activation the gradient of what went into it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearInputGradient {
    pub accumulate: bool,
    pub activation: Option<Activation>,
}

/// `dweight = dy^T x`, `dbias = sum of the rows of dy`, added to the previous ones with `accumulate`.
///
/// Inputs: x f32[..,K], dy f32[..,M], then the previous dweight f32[M,K] and dbias f32[M].
/// Outputs: dweight f32[M,K] and, with `bias`, dbias f32[M].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearWeightGradient {
    pub bias: bool,
    pub accumulate: bool,
}

/// Packing space for one product.
fn product_workspace(limits: &WorkspaceLimits) -> u64 {
    limits.threads as u64 * limits.product_bytes_per_thread
}

fn product_flops(rows: usize, inner: usize, columns: usize) -> u64 {
    2 * rows as u64 * inner as u64 * columns as u64
}

/// Out and in features of a weight.
fn features(operation: &'static str, weight: &TensorType) -> Result<[usize; 2], TypeError> {
    <[usize; 2]>::try_from(weight.shape.dims())
        .map_err(|_| TypeError { operation, problem: format!("weight is {weight}, not a matrix") })
}

impl Operation for Linear {
    fn name(&self) -> &'static str {
        match (self.activation, self.residual) {
            (None, false) => "linear",
            (None, true) => "linear-residual",
            (Some(Activation::GeluTanh), false) => "linear-gelu",
            (Some(Activation::GeluTanh), true) => "linear-gelu-residual",
        }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.bias) + usize::from(self.residual))?;
        let [out, inner] = features(self.name(), &inputs[1])?;
        expect_type(self.name(), "weight", &inputs[1], TensorType::f32(&[out, inputs[0].shape.last()]))?;
        debug_assert_eq!(inner, inputs[0].shape.last());
        let y = TensorType { dtype: inputs[0].dtype, shape: inputs[0].shape.with_last(out) };
        if self.bias {
            expect_type(self.name(), "bias", &inputs[2], TensorType::f32(&[out]))?;
        }
        if self.residual {
            expect_type(self.name(), "residual", &inputs[2 + usize::from(self.bias)], y)?;
        }
        Ok(if self.activation.is_some() { vec![y, y] } else { vec![y] })
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), outputs[0].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    /// The residual stream may be continued in place.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        match (self.residual, self.bias) {
            (false, _) => &[],
            (true, false) => &[(0, 2)],
            (true, true) => &[(0, 3)],
        }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        if self.residual {
            tape.pass(2 + usize::from(self.bias), dy);
        }
        let dy = match self.activation {
            None => dy,
            Some(activation) => {
                let fused = if self.residual { None } else { tape.fuse_slope(activation) };
                fused.unwrap_or_else(|| {
                    let before = tape.output(1);
                    let Activation::GeluTanh = activation;
                    tape.emit(Op::GeluBackward(GeluBackward), vec![dy, before], &[None])[0]
                })
            }
        };
        let mut inputs = vec![tape.input(0), dy];
        let previous = tape.partial(1);
        inputs.extend(previous);
        if self.bias && previous.is_some() {
            inputs.extend(tape.partial(2));
        }
        let op = LinearWeightGradient { bias: self.bias, accumulate: previous.is_some() };
        let gradients: &[Option<usize>] = if self.bias { &[Some(1), Some(2)] } else { &[Some(1)] };
        tape.emit(Op::LinearWeightGradient(op), inputs, gradients);
        if tape.wants(0) {
            let mut inputs = vec![dy, tape.input(1)];
            let so_far = tape.partial(0);
            inputs.extend(so_far);
            let op = LinearInputGradient { accumulate: so_far.is_some(), activation: None };
            tape.emit(Op::LinearInputGradient(op), inputs, &[Some(0)]);
        }
    }
}

impl Operation for LinearInputGradient {
    fn name(&self) -> &'static str {
        match self.activation {
            None => "linear-input-gradient",
            Some(Activation::GeluTanh) => "linear-input-gradient-gelu",
        }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let extra = usize::from(self.accumulate) + usize::from(self.activation.is_some());
        expect_inputs(self.name(), inputs, 2 + extra)?;
        let [_, inner] = features(self.name(), &inputs[1])?;
        expect_type(self.name(), "weight", &inputs[1], TensorType::f32(&[inputs[0].shape.last(), inner]))?;
        let dx = TensorType { dtype: inputs[0].dtype, shape: inputs[0].shape.with_last(inner) };
        if self.accumulate {
            expect_type(self.name(), "the gradient so far", &inputs[2], dx)?;
        }
        if self.activation.is_some() {
            expect_type(self.name(), "what went into the activation", &inputs[1 + extra], dx)?;
        }
        Ok(vec![dx])
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), outputs[0].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 2)] } else { &[] }
    }
}

impl Operation for LinearWeightGradient {
    fn name(&self) -> &'static str {
        "linear-weight-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let previous = if self.accumulate { 1 + usize::from(self.bias) } else { 0 };
        expect_inputs(self.name(), inputs, 2 + previous)?;
        let (inner, out) = (inputs[0].shape.last(), inputs[1].shape.last());
        expect_type(
            self.name(),
            "dy",
            &inputs[1],
            TensorType { shape: inputs[0].shape.with_last(out), ..inputs[0] },
        )?;
        let mut outputs = vec![TensorType::f32(&[out, inner])];
        if self.bias {
            outputs.push(TensorType::f32(&[out]));
        }
        for (found, wanted) in inputs[2..].iter().zip(&outputs) {
            expect_type(self.name(), "a previous gradient", found, *wanted)?;
        }
        Ok(outputs)
    }

    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), inputs[1].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        match (self.accumulate, self.bias) {
            (false, _) => &[],
            (true, false) => &[(0, 2)],
            (true, true) => &[(0, 2), (1, 3)],
        }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::LinearWeightGradient(LinearWeightGradient { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        if self.bias { &[0, 1] } else { &[0] }
    }
}
