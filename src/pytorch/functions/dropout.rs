//! `torch.nn.functional.dropout` in training.

use crate::tensor::{DType, Tensor};
use crate::torch::Torch;

/// `nn.Dropout` where it has an effect.
pub(crate) fn dropout_if(torch: &Torch, x: Tensor, applies: bool) -> Tensor {
    if applies { dropout(torch, &x) } else { x }
}

/// `native_dropout`: the output, and a mask of bools that backward needs.
pub(crate) fn dropout(torch: &Torch, x: &Tensor) -> Tensor {
    let node = torch.node(&[x], &[], |torch, backward| vec![torch.like(backward.gradient()).into()]);
    let mask = torch.tensor(x.shape(), DType::Bool);
    let output = torch.like(x);
    match node {
        None => output,
        Some(node) => {
            node.save(torch, &mask);
            output.output_of(&node, 0)
        }
    }
}
