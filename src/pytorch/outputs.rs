//! Outputs that an evaluation collects: a list, or one tensor that grows.

use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Shape;
use spec::{Collect, CollectedIn, CollectedOutput};

/// The outputs of an evaluation so far, on the device.
pub(crate) struct Outputs {
    collect: Option<Collect>,
    collected: Collected,
}

impl Outputs {
    pub(crate) fn new(collect: Option<Collect>) -> Outputs {
        let concatenates = collect.is_some_and(|collect| collect.concatenate);
        Outputs { collect, collected: Collected::new(concatenates) }
    }

    /// Adds the outputs of a forward pass.
    pub(crate) fn add(&mut self, torch: &Torch, loss: &Tensor, logits: Option<&Tensor>) {
        let Some(Collect { what, to: CollectedIn::Device, .. }) = self.collect else { return };
        self.collected.add(
            torch,
            match what {
                CollectedOutput::Logits => logits.expect("the model returns its logits").detached(),
                CollectedOutput::Loss => loss.detached(),
            },
        );
    }
}

/// Tensors in a list, or concatenated to one.
pub(crate) struct Collected {
    concatenates: bool,
    tensors: Vec<Tensor>,
}

impl Collected {
    pub(crate) fn new(concatenates: bool) -> Collected {
        Collected { concatenates, tensors: Vec::new() }
    }

    pub(crate) fn add(&mut self, torch: &Torch, tensor: Tensor) {
        let output = if tensor.shape().dims().is_empty() { tensor.view(Shape::new(&[1])) } else { tensor };
        match self.tensors.pop() {
            // `torch.cat((outputs, output))`: both live until the result is assigned.
            Some(outputs) if self.concatenates => {
                let [before, rows] = [&outputs, &output].map(|part| part.shape().dims()[0]);
                self.tensors.push(torch.tensor(output.shape().with_first(before + rows), output.dtype()));
            }
            before => self.tensors.extend(before.into_iter().chain([output])),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tensors.clear();
    }
}
