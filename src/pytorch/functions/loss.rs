//! `torch.nn.functional.cross_entropy`

use super::cast;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;

/// `log_softmax`, then `nll_loss`: the mean over the targets. logits [N, V], targets i64[N]. Under autocast both are in
/// fp32 after `log_softmax` has read the logits in their own dtype.
pub(crate) fn cross_entropy(torch: &Torch, logits: &Tensor, targets: &Tensor) -> Tensor {
    let node = torch.node(&[logits], &[], |torch, backward| vec![torch.like(backward.gradient()).into()]);
    let mut probabilities = torch.like(logits);
    if let Some(node) = node {
        node.save(torch, &probabilities.detached());
        probabilities = probabilities.output_of(&node, 0);
    }
    // The caller of `nll_loss` holds its argument until it returns.
    let _argument = probabilities.clone();
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
