//! Rotary position embedding as Hugging Face's Llama has it.

use super::elementwise::negative;
use super::{add, mul};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Shape;

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
    let (first, second) = (half(torch, x), half(torch, x));
    let negative = negative(torch, &second);
    let shape = first.shape();
    torch.output((x.shape(), x.dtype()), None, &[&negative, &first], &[], move |_, backward| {
        // Slices of the gradient.
        let part = || backward.gradient().view(shape).into();
        vec![part(), part()]
    })
}

/// `x[..., :D/2]`: a view, whose gradient is zeros with a copied slice.
fn half(torch: &Torch, x: &Tensor) -> Tensor {
    let full = x.shape();
    let mut dims = full.dims().to_vec();
    *dims.last_mut().expect("a row") /= 2;
    torch.output((Shape::new(&dims), x.dtype()), Some(x), &[x], &[], move |torch, backward| {
        vec![torch.tensor(full, backward.gradient().dtype()).into()]
    })
}
