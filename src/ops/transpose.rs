//! Transposition of each sample.

use super::{
    Op, Operand, Operation, OutputRole, Shape, Tape, TensorType, TypeError, expect_float, expect_inputs,
    expect_type,
};

/// Transposes each sample: x num[B,..] with `rows` rows of its remaining elements becomes y num[B,sample]. One row or one column
/// is a copy in another shape. With `accumulate` the second input num[B,sample] is added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transpose {
    pub rows: usize,
    /// The shape of a sample of y.
    pub sample: Shape,
    pub accumulate: bool,
}

impl Transpose {
    /// Rows and columns of a sample of x.
    pub fn sizes(&self) -> [usize; 2] {
        [self.rows, self.sample.elements() / self.rows]
    }
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1 + usize::from(self.accumulate))?;
        let dtype = expect_float(self.name(), "x", &inputs[0])?;
        let (samples, of_sample) = (inputs[0].shape.dims()[0], &inputs[0].shape.dims()[1..]);
        let elements: usize = of_sample.iter().product();
        if elements != self.sample.elements() || !elements.is_multiple_of(self.rows) {
            let problem = format!("samples of {} cannot become {}", inputs[0], self.sample);
            return Err(TypeError { operation: self.name(), problem });
        }
        let y = TensorType::new(dtype, &[&[samples], self.sample.dims()].concat());
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[1], y)?;
        }
        Ok(vec![y])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    /// y may overwrite what is added to it.
    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 1)] } else { &[] }
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if tape.wants(0) {
            let [_, columns] = self.sizes();
            let sample = Shape::new(&tape.input_type(0).shape.dims()[1..]);
            let mut inputs = vec![tape.output_gradient(0)];
            let partial = tape.partial(0);
            inputs.extend(partial);
            let op = Transpose { rows: columns, sample, accumulate: partial.is_some() };
            tape.emit(Op::Transpose(op), inputs, &[OutputRole::Gradient(0)]);
        }
    }
}
