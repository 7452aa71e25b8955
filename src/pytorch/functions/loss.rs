//! The losses of `torch.nn.functional`, and the sum of a tensor.

use super::elementwise::{add, negative, scale};
use super::{cast, reduce};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// `log_softmax`, then `nll_loss`: the mean over the targets. logits [N, V], targets i64[N]. Under autocast both are in
/// fp32 after `log_softmax` has read the logits in their own dtype.
pub(crate) fn cross_entropy(torch: &Torch, logits: &Tensor, targets: &Tensor) -> Tensor {
    let probabilities = log_softmax(torch, logits);
    // The caller of `nll_loss` holds its argument until it returns.
    let _argument = probabilities.clone();
    nll_loss(torch, probabilities, targets)
}

/// The same with `label_smoothing`: beside `nll_loss` the mean over the targets of the sum over classes. Operands of C++'s
/// operators are evaluated from the right.
pub(crate) fn smoothed_cross_entropy(torch: &Torch, logits: &Tensor, targets: &Tensor) -> Tensor {
    let probabilities = log_softmax(torch, logits);
    let of_targets = nll_loss(torch, probabilities.clone(), targets);
    let of_rows = {
        let sum = sum_of_classes(torch, &probabilities);
        negative(torch, &sum)
    };
    let ignored = torch.tensor(Shape::new(&[targets.elements()]), DType::Bool);
    let of_rows = masked_fill_in_place(torch, of_rows, &ignored);
    let mean = {
        let counted = torch.like(&ignored);
        let count = reduce::count(torch, &counted);
        let sum = sum(torch, &of_rows);
        divided(torch, &sum, &count)
    };
    let scaled_mean = scale(torch, &mean);
    let scaled = scale(torch, &of_targets);
    add(torch, &scaled, &scaled_mean)
}

/// `log_softmax` of logits [N, V], which saves its output.
fn log_softmax(torch: &Torch, logits: &Tensor) -> Tensor {
    let node = torch.node(&[logits], &[], |torch, backward| vec![torch.like(backward.gradient()).into()]);
    let probabilities = torch.like(logits);
    match node {
        None => probabilities,
        Some(node) => {
            node.save(torch, &probabilities.detached());
            probabilities.output_of(&node, 0)
        }
    }
}

/// The mean of targets i64[N], which saves its inputs and the number of targets.
fn nll_loss(torch: &Torch, mut probabilities: Tensor, targets: &Tensor) -> Tensor {
    if torch.autocast().is_some() {
        probabilities = cast(torch, &probabilities, DType::F32);
    }
    let dtype = probabilities.dtype();
    let shape = Shape::new(&[probabilities.shape().rows(), probabilities.shape().last()]);
    let saved = [&probabilities, targets];
    let node = torch.node(&[&probabilities], &saved, move |torch, _| vec![torch.tensor(shape, dtype).into()]);
    let (loss, total) = (torch.scalar(dtype), torch.scalar(dtype));
    match node {
        None => loss,
        Some(node) => {
            node.save(torch, &total);
            loss.output_of(&node, 0)
        }
    }
}

/// `x.sum(1)` of x [N, V], in fp32 under autocast, without a cast.
fn sum_of_classes(torch: &Torch, x: &Tensor) -> Tensor {
    let shape = x.shape();
    let rows = Shape::new(&[shape.rows()]);
    torch.output((rows, summed(torch, x)), None, &[x], &[], move |_, backward| {
        vec![backward.gradient().view(shape).into()]
    })
}

/// `x.masked_fill_(mask, 0.0)`, which saves the mask.
fn masked_fill_in_place(torch: &Torch, x: Tensor, mask: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), Some(&x), &[&x], &[mask], |torch, backward| {
        vec![torch.like(backward.gradient()).into()]
    })
}

/// `x / count` of two numbers.
fn divided(torch: &Torch, x: &Tensor, count: &Tensor) -> Tensor {
    torch.output((x.shape(), x.dtype()), None, &[x], &[count], |torch, backward| {
        vec![torch.like(backward.gradient()).into()]
    })
}

/// The dtype of a sum.
fn summed(torch: &Torch, x: &Tensor) -> DType {
    if torch.autocast().is_some() { DType::F32 } else { x.dtype() }
}

/// `x.sum()`, in fp32 under autocast, without a cast. The gradient repeats one number.
pub(crate) fn sum(torch: &Torch, x: &Tensor) -> Tensor {
    let shape = x.shape();
    let node = torch.node(&[x], &[], move |_, backward| vec![backward.gradient().repeated(shape).into()]);
    let sum = reduce::sum_of_all(torch, x.elements(), summed(torch, x));
    match node {
        Some(node) => sum.output_of(&node, 0),
        None => sum,
    }
}

/// The mean of squared differences, in fp32 under autocast. Its memory has room for all of them: PyTorch resizes it to one
/// number.
pub(crate) fn mse_loss(torch: &Torch, x: &Tensor, targets: &Tensor) -> Tensor {
    let x = if torch.autocast().is_some() { cast(torch, x, DType::F32) } else { x.clone() };
    let (shape, dtype) = (x.shape(), x.dtype());
    let node = torch.node(&[&x], &[&x, targets], move |torch, _| vec![torch.tensor(shape, dtype).into()]);
    let loss = torch.like(&x).view(Shape::new(&[]));
    let _squares = torch.like(&x);
    reduce::scratch_of_all(torch, x.elements(), DType::F32);
    match node {
        Some(node) => loss.output_of(&node, 0),
        None => loss,
    }
}

/// The mean of the cross-entropy of each logit, in fp32 under autocast.
pub(crate) fn binary_cross_entropy_with_logits(torch: &Torch, x: &Tensor, targets: &Tensor) -> Tensor {
    let x = if torch.autocast().is_some() { cast(torch, x, DType::F32) } else { x.clone() };
    let node =
        torch.node(&[&x], &[&x, targets], |torch, backward| vec![torch.like(&backward.saved[0]).into()]);
    let log_sigmoid = torch.like(&x);
    let losses = torch.like(&x);
    let loss = reduce::mean_of_all(torch, &losses);
    drop((losses, log_sigmoid));
    match node {
        Some(node) => loss.output_of(&node, 0),
        None => loss,
    }
}
