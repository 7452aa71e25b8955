//! `torch.utils.checkpoint(use_reentrant=True)`: forward makes no graph. Backward recomputes the whole function with one,
//! and runs the backward pass of this graph within its own.

use super::Checkpointed;
use crate::autograd::run;
use crate::coverage::NotCovered;
use crate::tensor::Tensor;
use crate::torch::Torch;

pub(super) fn checkpoint(torch: &Torch, called: Checkpointed, input: &Tensor) -> Tensor {
    let Checkpointed { function, closure, .. } = called;
    if !input.requires_grad() {
        let reason = "a reentrant checkpoint whose input needs no gradient gives its parameters none: use \
                      torch_checkpoint = \"non-reentrant\"";
        torch.refuse(NotCovered(reason.to_owned()));
    }
    let output = torch.with_grad(false, || function(torch, input));
    let autocast = torch.autocast();
    let node = torch.node(&[input], &[], move |torch, backward| {
        // The node holds the function, and what it closes over, as long as the graph exists.
        let _held = &closure;
        let (function, input) = backward.node.saved_call();
        let input = input.leaf();
        let output = torch.with_autocast(autocast, || torch.with_grad(true, || function(torch, &input)));
        run(torch, &output, backward.gradient(), false);
        let gradient = input.grad();
        if let Some(gradient) = &gradient {
            gradient.set_purpose(torch.purpose());
        }
        vec![gradient.into()]
    });
    match node {
        Some(node) => {
            node.save_call(function, input);
            output.output_of(&node, 0)
        }
        None => output,
    }
}
