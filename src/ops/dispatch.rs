//! Rows of experts: copies of the model's rows, sorted by expert, and their weighted sums.
//!
//! N rows, K experts per row, R = N*K sorted pairs. `places` i32[..,K] holds each pair's place among the sorted ones,
//! `order` i32[R] each sorted pair's index among all pairs (see [`Route`](super::Route)).

use super::{
    Op, Operand, Operation, OutputRole, Tape, TensorType, TypeError, expect_float, expect_inputs, expect_type,
};

/// Copies each row to its K places. Inputs: x num[..,C], order, places. Output: the sorted rows num[R,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dispatch;

/// Gradient of [`Dispatch`]: each row's sum over its K places.
///
/// Inputs: the gradient of the sorted rows num[R,C], places; with `accumulate` the partial gradient num[..,C].
/// Output: dx num[..,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DispatchBackward {
    pub accumulate: bool,
}

/// Each row's sum over its K places, weighted.
///
/// Inputs: the sorted rows num[R,C], order, places, weights f32[..,K]. Output: y num[..,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Combine;

/// Gradients of [`Combine`].
///
/// Inputs: dy num[..,C] and the inputs of the forward operation. Outputs: the gradients of the sorted rows num[R,C] and of
/// the weights f32[..,K].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CombineBackward;

/// Checks places i32[..,K] of the rows of x num[..,C]; returns the type of the R sorted rows.
fn sorted(operation: &'static str, x: &TensorType, places: &TensorType) -> Result<TensorType, TypeError> {
    let dtype = expect_float(operation, "x", x)?;
    let of_rows = x.shape.with_last(places.shape.last());
    expect_type(operation, "places", places, TensorType::i32(of_rows.dims()))?;
    Ok(TensorType::new(dtype, &[places.elements(), x.shape.last()]))
}

/// Checks R sorted rows and their places; returns the type of the N rows num[..,C].
fn unsorted(
    operation: &'static str,
    rows: &TensorType,
    places: &TensorType,
) -> Result<TensorType, TypeError> {
    let dtype = expect_float(operation, "the sorted rows", rows)?;
    let y = TensorType { dtype, shape: places.shape.with_last(rows.shape.last()) };
    expect_type(operation, "the sorted rows", rows, sorted(operation, &y, places)?)?;
    Ok(y)
}

fn expect_order(operation: &'static str, order: &TensorType, places: &TensorType) -> Result<(), TypeError> {
    expect_type(operation, "order", order, TensorType::i32(&[places.elements()]))
}

impl Operation for Dispatch {
    fn name(&self) -> &'static str {
        "dispatch"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_order(self.name(), &inputs[1], &inputs[2])?;
        Ok(vec![sorted(self.name(), &inputs[0], &inputs[2])?])
    }

    fn operand(&self, input: usize) -> Operand {
        if input == 0 { Operand::Matrix } else { Operand::Any }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0), tape.input(2)];
        let partial = tape.partial(0);
        inputs.extend(partial);
        let op = DispatchBackward { accumulate: partial.is_some() };
        tape.emit(Op::DispatchBackward(op), inputs, &[OutputRole::Gradient(0)]);
    }
}

impl Operation for DispatchBackward {
    fn name(&self) -> &'static str {
        "dispatch-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.accumulate))?;
        let dx = unsorted(self.name(), &inputs[0], &inputs[1])?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[2], dx)?;
        }
        Ok(vec![dx])
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 2)] } else { &[] }
    }
}

impl Operation for Combine {
    fn name(&self) -> &'static str {
        "combine"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 4)?;
        let [rows, order, places, weights] = [inputs[0], inputs[1], inputs[2], inputs[3]];
        expect_order(self.name(), &order, &places)?;
        expect_type(self.name(), "weights", &weights, TensorType::f32(places.shape.dims()))?;
        Ok(vec![unsorted(self.name(), &rows, &places)?])
    }

    fn operand(&self, input: usize) -> Operand {
        match input {
            0 => Operand::Matrix,
            1 | 2 => Operand::Any,
            _ => Operand::Full,
        }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let mut inputs = vec![tape.output_gradient(0)];
        inputs.extend((0..4).map(|input| tape.input(input)));
        // Router and experts are trained or frozen together, so that both gradients are required.
        let roles = [OutputRole::Gradient(0), OutputRole::Gradient(3)];
        tape.emit(Op::CombineBackward(CombineBackward), inputs, &roles);
    }
}

impl Operation for CombineBackward {
    fn name(&self) -> &'static str {
        "combine-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 5)?;
        let y = Combine.outputs(&inputs[1..])?[0];
        expect_type(self.name(), "dy", &inputs[0], y)?;
        Ok(vec![inputs[1], inputs[4]])
    }

    /// The gradients of the weights precede those of the sorted rows.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 1)]
    }
}
