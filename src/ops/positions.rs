//! Learned positions: one table that is added to each sample.

use super::{
    DType, Op, Operand, Operation, OutputRole, Processor, Shape, Tape, TensorType, TypeError,
    WorkspaceLimits, expect_float, expect_inputs, expect_type,
};

/// `y[b] = x[b] + table`. Inputs: x num[B,..], table num[..] of a sample's shape. Output: y num[B,..].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddPositions;

/// Gradient of the table of [`AddPositions`]: the sum of dy over samples.
///
/// Inputs: dy num[B,..]; with `accumulate` the previous dtable num[..]. Output: dtable num[..], summed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionsGradient {
    /// The dtype of dtable.
    pub gradients: DType,
    pub accumulate: bool,
}

/// The type of a sample, in another dtype.
fn of_sample(operation: &'static str, batch: &TensorType, dtype: DType) -> Result<TensorType, TypeError> {
    expect_float(operation, "x", batch)?;
    match batch.shape.dims() {
        [_, sample @ ..] if !sample.is_empty() => Ok(TensorType { dtype, shape: Shape::new(sample) }),
        _ => Err(TypeError { operation, problem: format!("x is {batch}, expected samples of some shape") }),
    }
}

impl PositionsGradient {
    /// f32 sums of a GPU, which are then rounded.
    pub fn sums_bytes(&self, dtable: &TensorType) -> u64 {
        if self.gradients == DType::F32 { 0 } else { TensorType { dtype: DType::F32, ..*dtable }.bytes() }
    }
}

impl Operation for AddPositions {
    fn name(&self) -> &'static str {
        "add-positions"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2)?;
        let table = of_sample(self.name(), &inputs[0], inputs[0].dtype)?;
        expect_type(self.name(), "table", &inputs[1], table)?;
        Ok(vec![inputs[0]])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        &[(0, 0)]
    }

    fn backward(&self, tape: &mut dyn Tape) {
        let dy = tape.output_gradient(0);
        if tape.wants(1) {
            let previous = tape.partial(1);
            let gradients = tape.parameter_gradients();
            let op = PositionsGradient { gradients, accumulate: previous.is_some() };
            let inputs = [dy].into_iter().chain(previous).collect();
            tape.emit(Op::PositionsGradient(op), inputs, &[OutputRole::Gradient(1)]);
        }
        tape.pass(0, dy);
    }
}

impl Operation for PositionsGradient {
    fn name(&self) -> &'static str {
        "positions-gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1 + usize::from(self.accumulate))?;
        let dtable = of_sample(self.name(), &inputs[0], self.gradients)?;
        if self.accumulate {
            expect_type(self.name(), "the previous gradient", &inputs[1], dtable)?;
        }
        Ok(vec![dtable])
    }

    fn workspace(&self, _inputs: &[TensorType], outputs: &[TensorType], limits: &WorkspaceLimits) -> u64 {
        match limits.processor {
            Processor::Cpu => 0,
            Processor::Cuda => self.sums_bytes(&outputs[0]),
        }
    }

    fn updates(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 1)] } else { &[] }
    }

    fn accumulating(&self) -> Option<Op> {
        Some(Op::PositionsGradient(PositionsGradient { accumulate: true, ..*self }))
    }

    fn accumulated(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_the_shape_of_a_sample() {
        let types = |x: &[usize], table: &[usize]| {
            AddPositions.outputs(&[TensorType::f32(x), TensorType::f32(table)])
        };
        assert_eq!(types(&[2, 3, 4], &[3, 4]).expect("a table of [3, 4]"), [TensorType::f32(&[2, 3, 4])]);
        let error = types(&[2, 3, 4], &[5, 4]).expect_err("a table of another length").to_string();
        assert_eq!(error, "add-positions: table is f32[5, 4], the other operands require f32[3, 4]");
        assert!(types(&[2], &[2]).is_err());
    }
}
