//! Outputs that an evaluation collects: a list, or one tensor that grows.

use crate::tensor::Tensor;
use crate::torch::Torch;
use ops::Shape;
use spec::{Collect, CollectedIn, CollectedOutput};

/// The outputs of an evaluation so far, on the device.
pub(crate) struct Outputs {
    collect: Option<Collect>,
    tensors: Vec<Tensor>,
}

impl Outputs {
    pub(crate) fn new(collect: Option<Collect>) -> Outputs {
        Outputs { collect, tensors: Vec::new() }
    }

    /// Adds the outputs of a forward pass.
    pub(crate) fn add(&mut self, torch: &Torch, loss: &Tensor, logits: Option<&Tensor>) {
        let Some(Collect { what, to: CollectedIn::Device, concatenate }) = self.collect else { return };
        let output = match what {
            CollectedOutput::Logits => logits.expect("the model returns its logits").detached(),
            CollectedOutput::Loss => loss.detached(),
        };
        let output = if output.shape().dims().is_empty() { output.view(Shape::new(&[1])) } else { output };
        match self.tensors.pop() {
            // `torch.cat((outputs, output))`: both live until the result is assigned.
            Some(outputs) if concatenate => {
                let [before, rows] = [&outputs, &output].map(|part| part.shape().dims()[0]);
                self.tensors.push(torch.tensor(output.shape().with_first(before + rows), output.dtype()));
            }
            before => self.tensors.extend(before.into_iter().chain([output])),
        }
    }
}
