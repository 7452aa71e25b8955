//! `torch.utils.checkpoint`: a function whose saved tensors are recomputed in backward.

mod non_reentrant;
mod reentrant;

use std::rc::Rc;

pub(crate) use self::non_reentrant::{Frame, Recomputed, results};
use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::OpKind;
use spec::{KeywordSet, TorchCheckpoint};

/// A function that can be called again.
pub(crate) type Function = Rc<dyn Fn(&Torch, &Tensor) -> Tensor>;

/// Calls a function whose saved tensors are recomputed in backward, except the results of operations of these kinds.
pub(crate) fn checkpoint(
    torch: &Torch,
    function: Function,
    input: &Tensor,
    keeps: KeywordSet<OpKind>,
) -> Tensor {
    match torch.options.checkpoint {
        TorchCheckpoint::NonReentrant => non_reentrant::checkpoint(torch, function, input, keeps),
        TorchCheckpoint::Reentrant => reentrant::checkpoint(torch, function, input),
    }
}
