//! Maximum pooling of images.

use super::{
    DType, Op, Operand, Operation, OutputRole, Sizes, Tape, TensorType, TypeError, Window, expect_float,
    expect_inputs, expect_type,
};

/// The maximum of each window, per channel. Padding counts as minus infinity. As in PyTorch, the first of several equal
/// maxima is the place, and a NaN is larger than every number.
///
/// Input: x num[B,H,W,C]. Outputs: y num[B,OH,OW,C]; places u8[B,OH,OW,C], the index of the maximum among the cells of
/// the kernel, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxPool {
    pub window: Window,
}

/// Gradient of [`MaxPool`]: each pixel's sum over the windows whose maximum it is.
///
/// Inputs: dy num[B,OH,OW,C], places u8[B,OH,OW,C]; with `accumulate` the partial gradient num[B,H,W,C]. Output: dx
/// num[B,H,W,C].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxPoolBackward {
    pub window: Window,
    /// Height and width of x.
    pub size: [usize; 2],
    pub accumulate: bool,
}

impl MaxPool {
    /// The largest number of kernel cells: places have 8 bits.
    pub const MOST_CELLS: usize = 255;
}

/// The type of y num[B,OH,OW,C].
fn pooled(operation: &'static str, window: &Window, x: &TensorType) -> Result<TensorType, TypeError> {
    let y = window.outputs(operation, x)?;
    let [height, width] = window.kernel;
    // Otherwise a window may contain padding only, and have no maximum.
    if 2 * window.padding > height.min(width) {
        let problem =
            format!("padding {} is more than half of the {height} x {width} kernel", window.padding);
        return Err(TypeError { operation, problem });
    }
    if window.cells() > MaxPool::MOST_CELLS {
        let problem = format!("the {height} x {width} kernel has more than {} cells", MaxPool::MOST_CELLS);
        return Err(TypeError { operation, problem });
    }
    Ok(TensorType::new(x.dtype, &y))
}

impl Operation for MaxPool {
    fn name(&self) -> &'static str {
        "max-pool"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 1)?;
        let y = pooled(self.name(), &self.window, &inputs[0])?;
        Ok(vec![y, TensorType { dtype: DType::U8, ..y }])
    }

    fn operand(&self, _input: usize) -> Operand {
        Operand::Matrix
    }

    fn backward(&self, tape: &mut dyn Tape) {
        if !tape.wants(0) {
            return;
        }
        let x = tape.input_type(0).shape;
        let mut inputs = vec![tape.output_gradient(0), tape.output(1)];
        let partial = tape.partial(0);
        inputs.extend(partial);
        let size = [x.dims()[1], x.dims()[2]];
        let op = MaxPoolBackward { window: self.window, size, accumulate: partial.is_some() };
        tape.emit(Op::MaxPoolBackward(op), inputs, &[OutputRole::Gradient(0)]);
    }
}

impl Operation for MaxPoolBackward {
    fn name(&self) -> &'static str {
        "max-pool-backward"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        expect_inputs(self.name(), inputs, 2 + usize::from(self.accumulate))?;
        let dx = unpooled(self.name(), self.size, &inputs[0])?;
        let dy = pooled(self.name(), &self.window, &dx)?;
        expect_type(self.name(), "dy", &inputs[0], dy)?;
        expect_type(self.name(), "places", &inputs[1], TensorType { dtype: DType::U8, ..dy })?;
        if self.accumulate {
            expect_type(self.name(), "the partial gradient", &inputs[2], dx)?;
        }
        Ok(vec![dx])
    }

    fn resize(&mut self, sizes: &Sizes) {
        let dx = sizes.outputs[0].shape;
        self.size = [dx.dims()[1], dx.dims()[2]];
    }

    fn may_overwrite(&self) -> &'static [(usize, usize)] {
        if self.accumulate { &[(0, 2)] } else { &[] }
    }
}

/// The type of dx num[B,H,W,C], for dy num[B,OH,OW,C] and x of this height and width.
pub(super) fn unpooled(
    operation: &'static str,
    [height, width]: [usize; 2],
    dy: &TensorType,
) -> Result<TensorType, TypeError> {
    let dtype = expect_float(operation, "dy", dy)?;
    let &[batch, _, _, channels] = dy.shape.dims() else {
        return Err(TypeError { operation, problem: format!("dy is {dy}, expected images [B, H, W, C]") });
    };
    Ok(TensorType::new(dtype, &[batch, height, width, channels]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_without_a_maximum_are_refused() {
        let x = TensorType::f32(&[2, 40, 40, 3]);
        let outputs = |kernel, padding| {
            let window = Window { kernel, stride: 1, padding };
            MaxPool { window }.outputs(&[x]).map_err(|error| error.to_string())
        };
        assert!(outputs([3, 3], 1).is_ok());
        assert!(outputs([15, 17], 0).is_ok());
        for (kernel, padding, problem) in [
            ([3, 3], 2, "padding 2 is more than half of the 3 x 3 kernel"),
            ([16, 16], 0, "the 16 x 16 kernel has more than 255 cells"),
            ([1, 41], 0, "a 1 x 41 window with stride 1 and padding 0 does not fit images of 40 x 40"),
        ] {
            assert_eq!(outputs(kernel, padding), Err(format!("max-pool: {problem}")));
        }
    }
}
