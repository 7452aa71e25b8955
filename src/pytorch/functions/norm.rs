//! Norms.

use super::cast;
use super::elementwise::{add_number, mean_last, mul, power, rsqrt};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// `torch.nn.functional.layer_norm`, in fp32 under autocast. x [.., C], weight and bias [C].
pub(crate) fn layer_norm(torch: &Torch, x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    let [bias, weight, x] = [bias, weight, x].map(|input| match torch.autocast() {
        Some(_) => cast(torch, input, DType::F32),
        None => input.clone(),
    });
    let (shape, dtype, rows) = (x.shape(), x.dtype(), x.shape().rows());
    let weight_shape = weight.shape();
    let node = torch.node(&[&x, &weight, &bias], &[&bias, &x, &weight], move |torch, backward| {
        let dx = backward.needs(0).then(|| torch.tensor(shape, dtype));
        let [dw, db] = [1, 2].map(|input| backward.needs(input).then(|| torch.tensor(weight_shape, dtype)));
        let Some(parts) = parts_of_sums(torch, rows, weight_shape.last()) else {
            return vec![dx.into(), dw.into(), db.into()];
        };
        let _parts =
            [&dw, &db].map(|sum| sum.as_ref().map(|_| torch.empty(&[parts, weight_shape.last()], dtype)));
        // The sum of the parts replaces the tensor that was made for it.
        let sum = |made: Option<Tensor>| {
            made.map(|_made| super::reduce::sum_rows(torch, parts, weight_shape.last(), dtype))
        };
        let dw = sum(dw);
        vec![dx.into(), dw.into(), sum(db).into()]
    });
    let output = torch.tensor(shape, dtype);
    let (mean, rstd) = (torch.empty(&[rows], DType::F32), torch.empty(&[rows], DType::F32));
    match node {
        None => output,
        Some(node) => {
            node.save(torch, &mean);
            node.save(torch, &rstd);
            output.output_of(&node, 0)
        }
    }
}

/// The number of parts in which the gradients of weight and bias are summed over rows, if there are many rows of few
/// columns.
fn parts_of_sums(torch: &Torch, rows: usize, columns: usize) -> Option<usize> {
    // Columns and rows of a thread block, and the most blocks.
    const WIDTH: usize = 32;
    const HEIGHT: usize = 32;
    const BLOCKS: usize = 1 << 15;
    let applies =
        torch.rules.layer_norm_parts && rows > 1 << 16 && columns / WIDTH < torch.card.multiprocessors / 2;
    applies.then(|| rows.div_ceil(HEIGHT).min(BLOCKS / columns.div_ceil(WIDTH)))
}

/// RMSNorm as Hugging Face's Llama has it: in fp32, and back. With `zero_centered` weights, as Gemma's, the product is
/// in fp32 too.
pub(crate) fn rms_norm(torch: &Torch, x: &Tensor, weight: &Tensor, zero_centered: bool) -> Tensor {
    let dtype = x.dtype();
    let x = cast(torch, x, DType::F32);
    // x = x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    let mean = {
        let squares = power(torch, &x);
        mean_last(torch, &squares)
    };
    let shifted = add_number(torch, &mean);
    drop(mean);
    let rrms = rsqrt(torch, &shifted);
    drop(shifted);
    let normed = mul(torch, &x, &rrms);
    drop((x, rrms));
    if !zero_centered {
        let normed = cast(torch, &normed, dtype);
        return mul(torch, weight, &normed);
    }
    // (x * (1.0 + weight.float())).to(dtype)
    let scale = {
        let weight = cast(torch, weight, DType::F32);
        add_number(torch, &weight)
    };
    let scaled = mul(torch, &normed, &scale);
    drop(scale);
    cast(torch, &scaled, dtype)
}
