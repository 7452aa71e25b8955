//! Rotary position embedding as Hugging Face's Llama has it.

use super::elementwise::{negative, promoted};
use super::{add, mul, slice};
use crate::tensor::Tensor;
use crate::torch::Torch;

/// `x * cos + rotate_half(x) * sin`, x [B, heads, T, D], cos and sin [T, D].
pub(crate) fn rotate(torch: &Torch, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
    let direct = mul(torch, x, cos);
    let rotated = {
        let half = rotate_half(torch, x);
        mul(torch, &half, sin)
    };
    add(torch, &direct, &rotated)
}

/// `torch.cat((-x2, x1), -1)`
fn rotate_half(torch: &Torch, x: &Tensor) -> Tensor {
    let half = x.shape().last() / 2;
    let (first, second) = (part(torch, x, half), part(torch, x, half));
    let negative = negative(torch, &second);
    joined(torch, &negative, &first)
}

/// `x[..., :n]`, a part of the last dimension.
pub(crate) fn part(torch: &Torch, x: &Tensor, channels: usize) -> Tensor {
    let full = x.shape();
    if channels == full.last() {
        // `alias()`, whose gradient is passed on.
        return torch.output((full, x.dtype()), Some(x), &[x], &[], |_, backward| {
            vec![backward.gradient().clone().into()]
        });
    }
    slice(torch, x, full.with_last(channels))
}

/// `torch.cat((a, b), -1)`, whose gradients are slices of the gradient.
pub(crate) fn joined(torch: &Torch, a: &Tensor, b: &Tensor) -> Tensor {
    let shapes = [a.shape(), b.shape()];
    let shape = shapes[0].with_last(shapes[0].last() + shapes[1].last());
    torch.output((shape, promoted(a, b)), None, &[a, b], &[], move |_, backward| {
        shapes.into_iter().map(|shape| backward.gradient().view(shape).into()).collect()
    })
}
