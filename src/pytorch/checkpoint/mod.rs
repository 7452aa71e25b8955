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

/// A function whose saved tensors are recomputed in backward.
pub(crate) struct Checkpointed {
    pub(crate) function: Function,
    /// The tensors that the function closes over; others are arguments.
    pub(crate) closure: Vec<Tensor>,
    /// The kinds of operations whose results are kept (`create_selective_checkpoint_contexts`).
    pub(crate) keeps: KeywordSet<OpKind>,
}

impl Checkpointed {
    pub(crate) fn of(function: Function) -> Checkpointed {
        Checkpointed { function, closure: Vec::new(), keeps: [].into_iter().collect() }
    }
}

pub(crate) fn checkpoint(torch: &Torch, called: Checkpointed, input: &Tensor) -> Tensor {
    match torch.options.checkpoint {
        TorchCheckpoint::NonReentrant => non_reentrant::checkpoint(torch, called, input),
        TorchCheckpoint::Reentrant => reentrant::checkpoint(torch, called, input),
    }
}
