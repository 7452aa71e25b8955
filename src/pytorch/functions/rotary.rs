//! Rotary position embedding as Hugging Face's Llama has it.

use super::elementwise::negative;
use super::views::{divided_columns, joined};
use super::{add, mul};
use crate::tensor::Tensor;
use crate::torch::Torch;

/// `x * cos + rotate_half(x) * sin`, x [B, heads, T, D], cos and sin [1 or B, 1, T, D].
pub(crate) fn rotate(torch: &Torch, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let direct = mul(torch, x, cos);
    let rotated = {
        let half = rotate_half(torch, x);
        mul(torch, &half, sin)
    };
    add(torch, &direct, &rotated)
}

/// `rotate` of the first R channels, as Phi-3 has it, of queries and keys. cos and sin [1 or B, 1, T, R].
pub(crate) fn rotate_part(torch: &Torch, xs: [&Tensor; 2], cos: &Tensor, sin: &Tensor) -> [Tensor; 2] {
    let rotated = cos.shape().last();
    let parts = xs.map(|x| divided_columns(torch, x, rotated));
    parts.each_ref().map(|[first, rest]| {
        let first = rotate(torch, first, cos, sin);
        joined(torch, [&first, rest])
    })
}

/// `torch.cat((-x2, x1), -1)`
fn rotate_half(torch: &Torch, x: &Tensor) -> Tensor {
    let [first, second] = divided_columns(torch, x, x.shape().last() / 2);
    let negative = negative(torch, &second);
    joined(torch, [&negative, &first])
}
