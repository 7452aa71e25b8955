//! Average pooling of images.

use super::max_pool::unpooled;
use super::{
    Op, Operand, Operation, OutputRole, Sizes, Tape, TensorType, TypeError, Window, expect_inputs,
    expect_type,
};

/// The mean of each window, per channel. Padding counts as zeros (`count_include_pad` of PyTorch). A window of the size
/// of the image is global pooling.
///
/// Input: x num[B,H,W,C]. Output: y num[B,OH,OW,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPool {
    pub window: Window,
}

/// Gradient of [`AvgPool`]: each pixel's sum over the windows that contain it, divided by the cells of the kernel.
///
/// Inputs: dy num[B,OH,OW,C]; with `accumulate` the partial gradient num[B,H,W,C]. Output: dx num[B,H,W,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPoolBackward {
    pub window: Window,
    /// Height and width of x.
    pub size: [usize; 2],
    pub accumulate: bool,
}

impl Operation for AvgPool {
    fn name(&self) -> &'static str {
        "avg-pool"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        Ok(vec![TensorType::new(inputs[0].dtype, &self.window.outputs(self.name(), &inputs[0])?)])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if !tape.wants(0) {
            return;
        }
        let x = tape.input_type(0).shape;
        let mut inputs = vec![tape.output_gradient(0)];
        let partial = tape.partial(0);
        inputs.extend(partial);
        let size = [x.dims()[1], x.dims()[2]];
        let op = AvgPoolBackward { window: self.window, size, accumulate: partial.is_some() };
        tape.emit(Op::AvgPoolBackward(op), inputs, &[OutputRole::Gradient(0)]);
    }
}

impl Operation for AvgPoolBackward {
    fn name(&self) -> &'static str {
        "avg-pool-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1 + usize::from(self.accumulate))?;
        let dx = unpooled(self.name(), self.size, &inputs[0])?;
        let dy = AvgPool { window: self.window }.outputs(&[dx])?[0];
        expect_type(self.name(), "dy", &inputs[0], dy)?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[1], dx)?;
        }
        Ok(vec![dx])
    }

    fn resize(&mut self, sizes: &Sizes) {
        let dx = sizes.outputs[0].shape;
        self.size = [dx.dims()[1], dx.dims()[2]];
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 1)] } else { &[] }
    }
}
