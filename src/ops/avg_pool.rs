//! Average pooling of images.

use super::max_pool::unpooled;
use super::{
    Op, Operand, Operation, OutputRole, Shape, Sizes, Tape, TensorType, TypeError, Window, expect_float,
    expect_inputs, expect_type,
};

/// The mean of each window, per channel. Padding counts as zeros (`count_include_pad` of PyTorch). A window of the size
/// of the image is global pooling. A sequence is an image of one column, which has one window: [`Window::column`].
///
/// Input: x num[B,H,W,C] or num[B,T,C]. Output: y num[B,OH,OW,C] or num[B,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPool {
    pub window: Window,
}

/// Gradient of [`AvgPool`]: each pixel's sum over the windows that contain it, divided by the cells of the kernel.
///
/// Inputs: dy num[B,OH,OW,C] or num[B,C]; with `accumulate` the partial gradient. Output: dx num[B,H,W,C] or num[B,T,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgPoolBackward {
    pub window: Window,
    /// Height and width of x; T and 1.
    pub size: [usize; 2],
    pub accumulate: bool,
}

/// Height and width of x num[B,H,W,C], or of a sequence num[B,T,C].
fn size_of(x: &Shape) -> [usize; 2] {
    match *x.dims() {
        [_, height, width, _] => [height, width],
        _ => [x.dims()[1], 1],
    }
}

impl Operation for AvgPool {
    fn name(&self) -> &'static str {
        "avg-pool"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        let x = inputs[0];
        if let &[batch, positions, channels] = x.shape.dims() {
            let dtype = expect_float(self.name(), "x", &x)?;
            return match self.window == Window::column(positions) {
                true => Ok(vec![TensorType::new(dtype, &[batch, channels])]),
                false => {
                    let problem = format!("the window of x, which is {x}, must be the whole sequence");
                    Err(TypeError { operation: self.name(), problem })
                }
            };
        }
        Ok(vec![TensorType::new(x.dtype, &self.window.outputs(self.name(), &x)?)])
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
        let op = AvgPoolBackward { window: self.window, size: size_of(&x), accumulate: partial.is_some() };
        tape.emit(Op::AvgPoolBackward(op), inputs, &[OutputRole::Gradient(0)]);
    }
}

impl Operation for AvgPoolBackward {
    fn name(&self) -> &'static str {
        "avg-pool-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1 + usize::from(self.accumulate))?;
        let dx = match inputs[0].shape.dims() {
            &[batch, channels] => TensorType::new(inputs[0].dtype, &[batch, self.size[0], channels]),
            _ => unpooled(self.name(), self.size, &inputs[0])?,
        };
        let dy = AvgPool { window: self.window }.outputs(&[dx])?[0];
        expect_type(self.name(), "dy", &inputs[0], dy)?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[1], dx)?;
        }
        Ok(vec![dx])
    }

    fn resize(&mut self, sizes: &Sizes) {
        self.size = size_of(&sizes.outputs[0].shape);
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 1)] } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_window_of_the_whole_sequence_pools_it() {
        let pool =
            |positions| AvgPool { window: Window::column(positions) }.outputs(&[TensorType::f32(&[2, 5, 3])]);
        assert_eq!(pool(5).expect("the whole sequence"), [TensorType::f32(&[2, 3])]);
        let error = pool(4).expect_err("a part of it").to_string();
        assert_eq!(error, "avg-pool: the window of x, which is f32[2, 5, 3], must be the whole sequence");
    }
}
