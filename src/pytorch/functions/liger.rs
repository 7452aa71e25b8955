//! The fused linear cross-entropy of liger-kernel 0.8.5, whose forward computes the gradients, a chunk of rows at a time, and
//! its layers. Triton's kernels request no memory, and write many gradients in place.

use super::linear::viewed;
use super::reduce::{count, mean_of_all, sum_rows};
use super::{Layout, cast, matmul, matmul_output};
use crate::tensor::{DType, Tensor};
use crate::torch::{Backward, Torch};
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
        [0, 1].map(|input| backward.saved.get(input).cloned().into()).into()
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

/// `LigerRMSNormFunction`, x [.., C], weight [C]. `in_place`: the gradient of x overwrites that of the output. `copies`: x and
/// the gradient of the output are not contiguous.
pub(crate) fn liger_rms_norm(
    torch: &Torch,
    x: &Tensor,
    weight: &Tensor,
    in_place: bool,
    copies: bool,
) -> Tensor {
    let (shape, channels) = (x.shape(), x.shape().last());
    let contiguous = move |torch: &Torch, x: &Tensor| if copies { torch.like(x) } else { x.clone() };
    let node = torch.node(&[x, weight], &[], move |torch, backward| {
        let gradient = contiguous(torch, backward.gradient());
        // A row of sums for each multiprocessor.
        let rows = torch.card.multiprocessors;
        let sums = backward.needs(1).then(|| torch.empty(&[rows, channels], DType::F32));
        let dx = if in_place { gradient.view(shape) } else { torch.like(&gradient).into_view() };
        let dw = sums.as_ref().map(|_| {
            let sum = sum_rows(torch, rows, channels, DType::F32);
            cast(torch, &sum, backward.dtypes[1])
        });
        vec![dx.into(), dw.into()]
    });
    let x = contiguous(torch, x);
    let output = torch.like(&x);
    let rrms = torch.empty(&[shape.rows()], DType::F32);
    match node {
        None => output,
        Some(node) => {
            [&x, weight, &rrms].into_iter().for_each(|tensor| node.save(torch, tensor));
            output.output_of(&node, 0)
        }
    }
}

/// `LigerRopeFunction`: rotates queries and keys [B, heads, T, D] in place, or copies that lie in memory as [B, T, heads, D].
/// `copies`: which of them are no views of that layout. `gradients`: the layouts of their gradients.
pub(crate) fn liger_rotate(
    torch: &Torch,
    xs: [Tensor; 2],
    tables: &[Tensor; 2],
    copies: [bool; 2],
    gradients: [Layout; 2],
) -> [Tensor; 2] {
    let backward = move |torch: &Torch, backward: &Backward<'_>| {
        let rotated = |part: usize| {
            let gradient = backward.gradients[part].as_ref().expect("attention has both");
            let copies = gradients[part] != Layout::Tokens
                && (gradients[part] == Layout::Channels || gradient.shape().dims()[1] > 1);
            if copies { torch.like(gradient).into_view() } else { gradient.view(gradient.shape()) }
        };
        [0, 1].map(|part| rotated(part).into()).into()
    };
    let node = torch.node_with_outputs(2, &[&xs[0], &xs[1]], backward);
    let rotated = [0, 1].map(|part| match copies[part] {
        true => torch.like(&xs[part]).into_view(),
        false => xs[part].view(xs[part].shape()),
    });
    let Some(node) = node else { return rotated };
    tables.iter().for_each(|table| node.save(torch, table));
    let mut output = 0;
    rotated.map(|x| {
        output += 1;
        x.output_of(&node, output - 1)
    })
}

/// `LigerSiLUMulFunction` and `LigerGELUMulFunction`: `activation(gate) * up`. Their gradients overwrite them. `copies`: they are
/// parts of rows.
pub(crate) fn liger_gated(torch: &Torch, [gate, up]: [&Tensor; 2], copies: bool) -> Tensor {
    let node = torch.node(&[gate, up], &[], |_, backward| {
        [0, 1].map(|input| backward.saved[input].view(backward.saved[input].shape()).into()).into()
    });
    let factors = [gate, up].map(|factor| if copies { torch.like(factor) } else { factor.detached() });
    let output = torch.like(&factors[0]);
    match node {
        None => output,
        Some(node) => {
            factors.iter().for_each(|factor| node.save(torch, factor));
            output.output_of(&node, 0)
        }
    }
}
