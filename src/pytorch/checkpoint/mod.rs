//! `torch.utils.checkpoint`: a function whose saved tensors are recomputed in backward.

mod non_reentrant;
mod reentrant;

use std::rc::Rc;

pub(crate) use self::non_reentrant::{Frame, Recomputed};
use crate::tensor::Tensor;
use crate::torch::Torch;
use spec::TorchCheckpoint;

/// A function that can be called again.
pub(crate) type Function = Rc<dyn Fn(&Torch, &Tensor) -> Tensor>;

/// Calls a function whose saved tensors are recomputed in backward.
pub(crate) fn checkpoint(torch: &Torch, function: Function, input: &Tensor) -> Tensor {
    match torch.options.checkpoint {
        TorchCheckpoint::NonReentrant => non_reentrant::checkpoint(torch, function, input),
        TorchCheckpoint::Reentrant => reentrant::checkpoint(torch, function, input),
    }
}
