//! Linear layers of experts: each has a weight of its own and a range of the rows, which are sorted by expert.
//!
//! E experts, R rows. The weights are stacked: M rows each. `ends` i32[E] holds the row after each expert's last one (see
//! [`Route`](super::Route)).

use super::linear::{product_flops, product_workspace};
use super::{
    DType, Op, OpKind, Operand, Operation, OutputRole, Tape, TensorType, TypeError, WorkspaceLimits,
    expect_f32_or, expect_float, expect_inputs, expect_type,
};

/// `y = x W^T` with each row's own W. Inputs: x num[R,K], weights num[EM,K], ends i32[E]. Output: y num[R,M].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLinear;

/// `dx = dy W` with each row's own W. Inputs: dy num[R,M], weights num[EM,K], ends i32[E]. Output: dx num[R,K].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLinearInputGradient;

/// `dW = dy^T x` over each expert's rows; zero without rows. Inputs: x num[R,K], dy num[R,M], ends i32[E]; with
/// `accumulate` the previous gradient num[EM,K]. Output: the gradient of the weights num[EM,K].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLinearWeightGradient {
    /// The dtype of the gradient.
    pub gradients: DType,
    pub accumulate: bool,
}

/// Checks ends i32[E] and weights num[EM,K]; returns M and K.
fn features(
    operation: &'static str,
    weights: &TensorType,
    ends: &TensorType,
) -> Result<[usize; 2], TypeError> {
    expect_type(operation, "ends", ends, TensorType::i32(&[ends.elements()]))?;
    match *weights.shape.dims() {
        [rows, inner] if rows.is_multiple_of(ends.elements()) => Ok([rows / ends.elements(), inner]),
        _ => {
            let problem =
                format!("weights are {weights}, not one matrix for each of {} experts", { ends.elements() });
            Err(TypeError { operation, problem })
        }
    }
}

/// The type of the rows times each one's weight or its transpose. Inputs: rows, weights, ends. `from` and `to`: the number
/// of columns before and after, 0 for M, 1 for K.
fn product(
    operation: &'static str,
    operand: &str,
    inputs: &[TensorType],
    [from, to]: [usize; 2],
) -> Result<Vec<TensorType>, TypeError> {
    expect_inputs(operation, inputs, 3)?;
    let features = features(operation, &inputs[1], &inputs[2])?;
    let dtype = expect_matrix(operation, operand, &inputs[0], features[from])?;
    expect_type(operation, "weights", &inputs[1], TensorType { dtype, ..inputs[1] })?;
    Ok(vec![TensorType::new(dtype, &[inputs[0].shape.rows(), features[to]])])
}

/// Checks x num[R,K].
fn expect_matrix(
    operation: &'static str,
    operand: &str,
    x: &TensorType,
    columns: usize,
) -> Result<DType, TypeError> {
    let dtype = expect_float(operation, operand, x)?;
    expect_type(operation, operand, x, TensorType::new(dtype, &[x.shape.rows(), columns]))?;
    Ok(dtype)
}

impl Operation for ExpertLinear {
    fn kind(&self) -> Option<OpKind> {
        Some(OpKind::Linear)
    }

    fn name(&self) -> &'static str {
        "expert-linear"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        product(self.name(), "x", inputs, [1, 0])
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), outputs[0].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    fn operand(&self, input: usize) -> Operand {
        if input < 2 { Operand::Matrix } else { Operand::Any }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let (dy, ends) = (tape.output_gradient(0), tape.input(2));
        if tape.wants(1) {
            let mut inputs = vec![tape.input(0), dy, ends];
            let previous = tape.partial(1);
            inputs.extend(previous);
            let gradients = tape.parameter_gradients();
            let op = ExpertLinearWeightGradient { gradients, accumulate: previous.is_some() };
            tape.emit(Op::ExpertLinearWeightGradient(op), inputs, &[OutputRole::Gradient(1)]);
        }
        if tape.wants(0) {
            assert!(tape.partial(0).is_none(), "the sorted rows have one reader");
            let inputs = vec![dy, tape.input(1), ends];
            let op = Op::ExpertLinearInputGradient(ExpertLinearInputGradient);
            tape.emit(op, inputs, &[OutputRole::Gradient(0)]);
        }
    }
}

impl Operation for ExpertLinearInputGradient {
    fn name(&self) -> &'static str {
        "expert-linear-input-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        product(self.name(), "dy", inputs, [0, 1])
    }

    fn flops(&self, inputs: &[TensorType], outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), outputs[0].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }
}

impl Operation for ExpertLinearWeightGradient {
    fn name(&self) -> &'static str {
        "expert-linear-weight-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 3 + usize::from(self.accumulate))?;
        let [x, dy, ends] = [inputs[0], inputs[1], inputs[2]];
        let dtype = expect_matrix(self.name(), "x", &x, x.shape.last())?;
        let of_dy = TensorType::new(dtype, &[x.shape.rows(), dy.shape.last()]);
        expect_type(self.name(), "dy", &dy, of_dy)?;
        let weights = TensorType::new(self.gradients, &[ends.elements() * dy.shape.last(), x.shape.last()]);
        features(self.name(), &weights, &ends)?;
        expect_f32_or(dtype, self.name(), "the gradient", &weights)?;
        if self.accumulate {
            expect_type(self.name(), "the previous gradient", &inputs[3], weights)?;
        }
        Ok(vec![weights])
    }

    fn flops(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> u64 {
        product_flops(inputs[0].shape.rows(), inputs[0].shape.last(), inputs[1].shape.last())
    }

    fn workspace(&self, _inputs: &[TensorType], _outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        product_workspace(limits)
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 3)] } else { &[] }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::ExpertLinearWeightGradient(ExpertLinearWeightGradient { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[0]
    }
}
