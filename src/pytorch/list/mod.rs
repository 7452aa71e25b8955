//! Layers in a list as the modules of the script: the forward pass. Images are [B, C, H, W], as in PyTorch.

mod attention;
mod layers;

use std::rc::Rc;

use self::layers::{Layers, Maker};
use crate::checkpoint::{Checkpointed, checkpoint};
use crate::coverage;
use crate::functions;
use crate::network::{Inputs, Network};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{OpKind, Shape};
use spec::{Attention, KeywordSet, Recompute, RunConfig, Sequential};

/// The modules with their parameters and buffers on the device.
pub(crate) struct List {
    modules: Rc<Layers>,
    samples: usize,
    /// The shapes of a sample.
    input: Shape,
    targets: Shape,
    recompute: Recompute,
    ids: bool,
    /// Whether it returns the logits beside the loss.
    returns_logits: bool,
}

impl List {
    /// Moves the model of a run to the device, as `model.to("cuda")` does.
    pub(crate) fn new(torch: &Torch, config: &RunConfig, model: &Sequential) -> List {
        let [input, targets] = model.parts().map(|part| part.ty.shape);
        let maker = Maker {
            torch,
            freeze: &config.strategy.freeze,
            writes_attention_out: config.strategy.attention == Attention::Materialized,
        };
        let modules = maker.layers(&model.modules(), "", &mut model.input_shape());
        List {
            modules: Rc::new(modules),
            samples: config.micro_batch(),
            input,
            targets,
            ids: model.ids().is_some(),
            recompute: config.strategy.recompute,
            returns_logits: coverage::returns_logits(config),
        }
    }

    /// The calls of the modules, checkpointed as the strategy has it. Returns the logits.
    fn forward(&self, torch: &Torch, x: &Tensor, trains: bool) -> Tensor {
        let count = self.modules.len();
        match self.recompute {
            Recompute::Segments(segments) if trains => {
                // `checkpoint_sequential`: the last segment takes the rest and is not checkpointed.
                let length = count / segments;
                let first_of_last = length * (segments - 1);
                let mut input = x.clone();
                for first in (0..first_of_last).step_by(length) {
                    input = self.checkpointed(torch, [first, first + length], &input);
                }
                self.modules.call(torch, first_of_last..count, &input, trains)
            }
            _ => {
                let mut x = x.clone();
                for index in 0..count {
                    x = match trains && self.is_checkpointed(index) {
                        true => self.checkpointed(torch, [index, index + 1], &x),
                        false => self.modules.call(torch, index..index + 1, &x, trains),
                    };
                }
                x
            }
        }
    }

    fn is_checkpointed(&self, module: usize) -> bool {
        match self.recompute {
            Recompute::Block | Recompute::Save(_) => true,
            Recompute::Every(every) => module.is_multiple_of(every),
            _ => false,
        }
    }

    /// Modules under a checkpoint.
    fn checkpointed(&self, torch: &Torch, [first, end]: [usize; 2], x: &Tensor) -> Tensor {
        let modules = Rc::clone(&self.modules);
        let function = Rc::new(move |torch: &Torch, x: &Tensor| modules.call(torch, first..end, x, true));
        checkpoint(torch, Checkpointed { keeps: self.keeps(), ..Checkpointed::of(function) }, x)
    }

    /// The kinds of operations whose results checkpointed modules keep.
    fn keeps(&self) -> KeywordSet<OpKind> {
        match self.recompute {
            Recompute::Save(kinds) => kinds,
            _ => [].into_iter().collect(),
        }
    }

    /// The shape of a part of the batch.
    fn of_batch(&self, sample: Shape) -> Shape {
        Shape::new(&[&[self.samples], sample.dims()].concat())
    }
}

impl Network for List {
    fn parameters(&self) -> Vec<Tensor> {
        self.modules.parameters()
    }

    fn embeddings(&self) -> Vec<Tensor> {
        if self.ids { self.modules.parameters()[..1].to_vec() } else { Vec::new() }
    }

    /// Muon is not covered.
    fn block_matrices(&self) -> Vec<Tensor> {
        Vec::new()
    }

    fn batch(&self) -> [(Shape, DType); 2] {
        let input = if self.ids { DType::I64 } else { DType::F32 };
        [(self.of_batch(self.input), input), (self.of_batch(self.targets), DType::I64)]
    }

    fn loss(self: Rc<List>, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>) {
        let logits = self.forward(torch, inputs.tokens, trains);
        let loss =
            torch.with_purpose(Purpose::Loss, || functions::cross_entropy(torch, &logits, inputs.targets));
        (loss, Some(logits).filter(|_| self.returns_logits))
    }

    fn resized(&self, _config: &RunConfig, samples: usize) -> Rc<dyn Network> {
        Rc::new(List { modules: Rc::clone(&self.modules), samples, ..*self })
    }
}
