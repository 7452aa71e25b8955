//! Layers in a list as the modules of the script: the forward pass. Images are [B, C, H, W], as in PyTorch.

mod attention;
mod layers;

use std::rc::Rc;

use self::layers::{Layers, Maker};
use crate::checkpoint::{Checkpointed, checkpoint};
use crate::coverage;
use crate::functions;
use crate::module::{Offloads, dtype_of};
use crate::network::{Inputs, Network, PartType};
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::{OpKind, Shape};
use spec::{Attention, CrossEntropyLoss, KeywordSet, OutputLoss, Recompute, RunConfig, Sequential};

/// The modules with their parameters and buffers on the device.
pub(crate) struct List {
    modules: Rc<Layers>,
    samples: usize,
    /// Of parameters and inputs.
    dtype: DType,
    /// The shapes of a sample.
    input: Shape,
    targets: Option<PartType>,
    loss: OutputLoss,
    recompute: Recompute,
    /// What is under `save_on_cpu`.
    offloads: Offloads,
    offloads_parameters: bool,
    ids: bool,
    /// Whether it returns the logits beside the loss.
    returns_logits: bool,
}

impl List {
    /// Moves the model of a run to the device, as `model.to("cuda")` does.
    pub(crate) fn new(torch: &Torch, config: &RunConfig, model: &Sequential) -> List {
        let targets = model.targets_part().map(|part| (part.ty.shape, dtype_of(part.ty.dtype)));
        let dtype = dtype_of(config.strategy.params.dtype());
        let maker = Maker {
            torch,
            freeze: &config.strategy.freeze,
            dtype,
            offloads: config.strategy.offload.parameters,
            writes_attention_out: config.strategy.attention == Attention::Materialized,
        };
        let modules = maker.layers(&model.modules(), "", &mut model.input_shape());
        List {
            modules: Rc::new(modules),
            samples: config.micro_batch(),
            dtype,
            input: model.input_shape(),
            targets,
            loss: model.loss,
            ids: model.ids().is_some(),
            recompute: config.strategy.recompute,
            offloads: Offloads::of(config),
            offloads_parameters: maker.offloads,
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
                    let _moved = self.moved(torch, index);
                    x = match trains && self.is_checkpointed(index) {
                        true => self.checkpointed(torch, [index, index + 1], &x),
                        false => self.modules.call(torch, index..index + 1, &x, trains),
                    };
                }
                x
            }
        }
    }

    /// What `module.to(device)` moves to the device for a call.
    fn moved(&self, torch: &Torch, module: usize) -> Vec<Tensor> {
        match self.offloads_parameters {
            true => torch.with_purpose(Purpose::Parameter, || {
                self.modules.stored(module).iter().map(|tensor| torch.like(tensor)).collect()
            }),
            false => Vec::new(),
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
        let called = Checkpointed { keeps: self.keeps(), ..Checkpointed::of(function) };
        torch.with_save_on_cpu(self.offloads.blocks, || checkpoint(torch, called, x))
    }

    /// The kinds of operations whose results checkpointed modules keep.
    fn keeps(&self) -> KeywordSet<OpKind> {
        match self.recompute {
            Recompute::Save(kinds) => kinds,
            _ => [].into_iter().collect(),
        }
    }

    /// The forward pass. Returns the loss, and the logits if they are kept.
    fn logits_and_loss(&self, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>) {
        let logits = self.forward(torch, inputs.tokens, trains);
        let targets = || inputs.expect_targets();
        let loss = torch.with_purpose(Purpose::Loss, || match self.loss {
            OutputLoss::CrossEntropy(CrossEntropyLoss { label_smoothing: 0.0 }) => {
                functions::cross_entropy(torch, &logits, targets())
            }
            OutputLoss::CrossEntropy(_) => functions::smoothed_cross_entropy(torch, &logits, targets()),
            OutputLoss::SquaredError => functions::mse_loss(torch, &logits, targets()),
            OutputLoss::BinaryCrossEntropy => {
                functions::binary_cross_entropy_with_logits(torch, &logits, targets())
            }
            OutputLoss::Sum => functions::sum(torch, &logits),
        });
        (loss, Some(logits).filter(|_| self.returns_logits))
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

    fn buffers(&self) -> Vec<Tensor> {
        self.modules.buffers()
    }

    fn embeddings(&self) -> Vec<Tensor> {
        if self.ids { self.modules.parameters()[..1].to_vec() } else { Vec::new() }
    }

    /// `fully_shard` is not covered.
    fn blocks(&self) -> Vec<Vec<Tensor>> {
        Vec::new()
    }

    /// Muon is not covered.
    fn block_matrices(&self) -> Vec<Tensor> {
        Vec::new()
    }

    fn batch(&self) -> (PartType, Option<PartType>) {
        let targets = self.targets.map(|(sample, dtype)| (self.of_batch(sample), dtype));
        let dtype = if self.ids { DType::I64 } else { self.dtype };
        ((self.of_batch(self.input), dtype), targets)
    }

    fn loss(self: Rc<List>, torch: &Torch, inputs: Inputs<'_>, trains: bool) -> (Tensor, Option<Tensor>) {
        torch.with_save_on_cpu(self.offloads.forward, || self.logits_and_loss(torch, inputs, trains))
    }

    fn resized(&self, _config: &RunConfig, samples: usize) -> Rc<dyn Network> {
        Rc::new(List { modules: Rc::clone(&self.modules), samples, ..*self })
    }
}
