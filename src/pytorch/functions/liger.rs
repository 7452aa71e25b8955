//! The fused linear cross-entropy of liger-kernel 0.8.5, whose forward computes the gradients, a chunk of rows at a time.

use super::linear::viewed;
use super::reduce::{count, mean_of_all};
use super::{cast, matmul, matmul_output};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// `LigerFusedLinearCrossEntropyFunction`: the mean or the sum of the loss of `hidden @ weight.T`. hidden [.., C], weight
/// [V, C].
pub(crate) fn fused_linear_cross_entropy(torch: &Torch, hidden: &Tensor, weight: &Tensor) -> Tensor {
    let hidden = viewed(torch, hidden);
    let node = torch.node(&[&hidden, weight], &[], |torch, backward| {
        {
            // torch.equal(grad_output, torch.tensor(1.0))
            let _one = torch.scalar(DType::F32);
            let _are_equal = torch.scalar(DType::Bool);
            torch.scalar(DType::Bool);
        }
        // A kernel scales the gradients in place.
        let mut gradients = backward.node.saved_tensors().into_iter();
        [(); 2].map(|()| gradients.next().into()).into()
    });
    let (loss, gradients) = torch.with_grad(false, || forward(torch, &hidden, weight));
    match node {
        None => loss,
        Some(node) => {
            gradients.iter().flatten().for_each(|gradient| node.save(torch, gradient));
            loss.output_of(&node, 0)
        }
    }
}

/// The loss and the gradients of hidden states and weight.
fn forward(torch: &Torch, hidden: &Tensor, weight: &Tensor) -> (Tensor, [Option<Tensor>; 2]) {
    let (rows, channels, vocabulary) =
        (hidden.shape().rows(), hidden.shape().last(), weight.shape().dims()[0]);
    let dtype = torch.autocast().unwrap_or(hidden.dtype());
    let differentiates = hidden.requires_grad();
    // The logits of a chunk have about as many numbers as the hidden states.
    let chunk = rows.div_ceil(vocabulary.div_ceil(channels)).next_power_of_two().min(rows);
    let hidden_gradient = torch.like(hidden);
    let weight_gradient = (differentiates && weight.requires_grad()).then(|| torch.like(weight));
    let losses = torch.empty(&[rows], DType::F32);
    let is_target = torch.empty(&[rows], DType::Bool);
    drop(count(torch, &is_target));
    // Without casts, all chunks have the same logits tensor, and products write in place (`out`).
    let storage = (hidden.dtype() == weight.dtype() && hidden.dtype() == dtype)
        .then(|| torch.empty(&[chunk, vocabulary], dtype));
    for first in (0..rows).step_by(chunk) {
        let hidden = hidden.view(Shape::new(&[chunk.min(rows - first), channels]));
        // They become their own gradient.
        let _logits = match &storage {
            Some(logits) => {
                torch.cublas_workspace();
                logits.clone()
            }
            None => matmul(torch, &hidden, weight),
        };
        if differentiates && storage.is_some() {
            torch.cublas_workspace();
        } else if differentiates {
            let _weight = cast(torch, weight, dtype);
            matmul_output(torch, hidden.shape(), dtype);
        }
        if weight_gradient.is_some() {
            add_product(torch, &hidden, weight.shape(), dtype);
        }
    }
    drop(storage);
    (mean_of_all(torch, &losses), [Some(hidden_gradient), weight_gradient])
}

/// Adds `logits.T @ hidden` to the gradient of the weight: by `addmm` in 16 bits from compute capability 8.0 on, else as a
/// tensor in fp32.
fn add_product(torch: &Torch, hidden: &Tensor, weight: Shape, dtype: DType) {
    let hidden = cast(torch, hidden, dtype);
    if dtype.is_half() && torch.card.capability >= (8, 0) {
        torch.cublas_workspace();
        return;
    }
    let product = matmul_output(torch, weight, dtype);
    drop(hidden);
    cast(torch, &product, DType::F32);
}
