//! `Linear4bit` of bitsandbytes 0.50: a frozen weight in four bits, which each call dequantizes.

use std::cell::RefCell;
use std::rc::Rc;

use super::reduce::mean_of_all;
use super::{converted, linear, matmul_output};
use crate::coverage::NotCovered;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// Elements that share a scale, and scales that share one.
const BLOCK: usize = 64;
const SCALES_BLOCK: usize = 256;

/// Up to this many rows, the choice of bitsandbytes' kernel is not predicted.
const UNKNOWN_ROWS: usize = 256;

/// A weight [M, K] in nf4, with its scales.
#[derive(Clone)]
pub(crate) struct FourBitWeight {
    shape: Shape,
    /// The dtype of the weight before, and of products.
    dtype: DType,
    /// Whether the scales are quantized, too.
    double: bool,
    _tensors: Rc<Vec<Tensor>>,
}

impl FourBitWeight {
    /// `Params4bit.to(device)`: a weight of this dtype is copied to the device and quantized there.
    pub(crate) fn new(torch: &Torch, dims: [usize; 2], dtype: DType, double: bool) -> FourBitWeight {
        let floats = |count: usize| torch.empty(&[count], DType::F32);
        let shape = Shape::new(&dims);
        let blocks = shape.elements().div_ceil(BLOCK);
        let _weight = torch.tensor(shape, dtype);
        let scales = floats(blocks);
        let mut tensors = vec![torch.bytes(shape.elements().div_ceil(2))];
        // The 16 numbers of the code, divided by the largest.
        let code = floats(16);
        {
            let _absolute = torch.like(&code);
            torch.scalar(DType::F32);
        }
        tensors.push(code);
        if double {
            // The mean of the scales, and their differences from it, quantized to 8 bits by a code of 256 numbers.
            tensors.push(mean_of_all(torch, &scales));
            let _differences = floats(blocks);
            torch.eight_bit_code();
            tensors.extend([floats(blocks.div_ceil(SCALES_BLOCK)), torch.bytes(blocks), floats(256)]);
        } else {
            tensors.push(scales);
        }
        FourBitWeight { shape, dtype, double, _tensors: Rc::new(tensors) }
    }

    /// Scales in fp32, if they are quantized.
    fn scales(&self, torch: &Torch) -> Option<Tensor> {
        self.double.then(|| torch.empty(&[self.shape.elements().div_ceil(BLOCK)], DType::F32))
    }

    /// Whether bitsandbytes' kernel multiplies this number of rows by the quantized weight itself (`gemm_4bit`): where it
    /// measured its kernel to be faster on a card of that kind.
    fn is_fused(&self, torch: &Torch, rows: usize) -> bool {
        let &[outer, inner] = self.shape.dims() else { unreachable!("a matrix") };
        if !inner.is_multiple_of(BLOCK) || self.dtype == DType::F32 && rows >= 8 {
            return false;
        }
        if rows <= UNKNOWN_ROWS {
            torch.refuse(NotCovered(format!(
                "bitsandbytes' 4-bit products of {rows} rows: use micro-batches of more than {UNKNOWN_ROWS} tokens"
            )));
        }
        if outer * inner >= 4 << 20 {
            return false;
        }
        let (blocks, processors) = (outer.div_ceil(64), torch.card.multiprocessors);
        let most = match (torch.card.capability, 2 * inner < outer) {
            ((8, 0), true) => {
                if 3 * blocks < processors {
                    1536
                } else {
                    512
                }
            }
            ((8, 0), false) if 4 * blocks <= processors && inner < outer => 384,
            ((9, 0), true) => {
                if 3 * blocks < processors {
                    512
                } else {
                    320
                }
            }
            ((7, 5), true) if blocks >= 3 * processors || inner < 704 => 320,
            ((8, 6 | 9), true) if blocks >= processors || blocks * inner <= 320 * processors => 320,
            _ => UNKNOWN_ROWS,
        };
        rows <= most
    }

    /// `gemm_4bit`, or `linear(x, dequantized, bias)`.
    fn product(&self, torch: &Torch, x: &Tensor, bias: Option<&Tensor>) -> Tensor {
        if self.is_fused(torch, x.shape().rows()) {
            return torch.tensor(x.shape().with_last(self.shape.dims()[0]), self.dtype);
        }
        let _differences = self.scales(torch);
        let _scales = self.scales(torch);
        let weight = torch.tensor(self.shape, self.dtype);
        linear(torch, x, &weight, bias)
    }

    /// `matmul(gradient, dequantized)`, the gradient of an input of this shape.
    fn input_gradient(&self, torch: &Torch, shape: Shape) -> Tensor {
        let weight = {
            let _scales = self.scales(torch);
            torch.tensor(self.shape, self.dtype)
        };
        let gradient = matmul_output(torch, shape, self.dtype);
        drop(weight);
        gradient
    }

    /// `matmul_4bit(x.to(compute_dtype), weight)` in the dtype of x. x [.., K], bias [M], which stays cast to the dtype of
    /// products.
    pub(crate) fn linear(&self, torch: &Torch, x: &Tensor, bias: &RefCell<Option<Tensor>>) -> Tensor {
        let dtype = x.dtype();
        let x = converted(torch, x, self.dtype);
        let cast_bias = bias.borrow().as_ref().map(|bias| converted(torch, bias, self.dtype));
        bias.replace(cast_bias.clone());
        let (weight, shape) = (self.clone(), x.shape());
        let node = torch.node(&[&x], &[], move |torch, _| vec![weight.input_gradient(torch, shape).into()]);
        let output = torch.with_grad(false, || self.product(torch, &x, cast_bias.as_ref()));
        let output = match node {
            Some(node) => output.output_of(&node, 0),
            None => output,
        };
        // The variable x lives until the function returns.
        converted(torch, &output, dtype)
    }
}
