//! Optimizers of `torch.optim` and bitsandbytes, and gradient clipping.

mod adafactor;
mod bitsandbytes;
mod muon;
mod of_run;

use std::collections::HashMap;

pub(crate) use self::bitsandbytes::{StateBits, States};
pub(crate) use self::of_run::{SharedOptimizer, optimizers};

use crate::rules::NormScratch;
use crate::sequence::Purpose;
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use ops::Shape;
use spec::TorchOptimizer;

/// The optimizers that are covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// AdamW and Adam.
    Adam,
    Sgd {
        momentum: bool,
    },
    Lion,
    Adafactor,
    Muon {
        nesterov: bool,
        /// Newton-Schulz iterations.
        steps: usize,
    },
}

/// The library that has the optimizer.
#[derive(Debug)]
pub(crate) enum Library {
    Torch(TorchOptimizer),
    /// `CPUOffloadOptimizer`: small parameters have a fused optimizer on the card, the others one on the host.
    Torchao,
    Bitsandbytes(States),
}

impl Library {
    fn updates_on_card(&self, parameter: &Tensor) -> bool {
        // `minimal_size`
        const ON_HOST: usize = 4096;
        !matches!(self, Library::Torchao) || parameter.elements() < ON_HOST
    }
}

impl Kind {
    /// The shapes of the states of a parameter.
    fn states(self, parameter: Shape) -> Vec<Shape> {
        match self {
            Kind::Adam => vec![parameter; 2],
            Kind::Sgd { momentum } => vec![parameter; usize::from(momentum)],
            Kind::Adafactor if parameter.dims().len() > 1 => {
                vec![parameter.with_last(1), Shape::new(&[1, parameter.last()])]
            }
            Kind::Lion | Kind::Adafactor | Kind::Muon { .. } => vec![parameter],
        }
    }

    /// The implementation that its class in `torch.optim` has: Muon one, Adafactor none that is fused.
    fn implementation(self, chosen: TorchOptimizer) -> TorchOptimizer {
        match (self, chosen) {
            (Kind::Muon { .. }, _) | (Kind::Adafactor, TorchOptimizer::Fused | TorchOptimizer::Torchao) => {
                TorchOptimizer::ForLoop
            }
            (_, TorchOptimizer::Torchao) => TorchOptimizer::Fused,
            _ => chosen,
        }
    }
}

pub(crate) struct Optimizer {
    kind: Kind,
    library: Library,
    /// Parameters by group.
    groups: Vec<Vec<Tensor>>,
    states: HashMap<usize, Vec<Tensor>>,
    /// bitsandbytes' codes of 8-bit numbers.
    codes: Vec<Tensor>,
}

impl Optimizer {
    pub(crate) fn new(kind: Kind, library: Library, groups: Vec<Vec<Tensor>>) -> Optimizer {
        let library = match library {
            Library::Torch(chosen) => Library::Torch(kind.implementation(chosen)),
            library @ (Library::Torchao | Library::Bitsandbytes(_)) => library,
        };
        Optimizer { kind, library, groups, states: HashMap::new(), codes: Vec::new() }
    }

    /// Whether its step takes a loss scale itself.
    pub(crate) fn is_fused(&self) -> bool {
        matches!(self.library, Library::Torch(TorchOptimizer::Fused))
    }

    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        self.groups.iter().flatten()
    }

    /// `optimizer.step()`
    pub(crate) fn step(&mut self, torch: &Torch) {
        for group in 0..self.groups.len() {
            let updated =
                |parameter: &&Tensor| parameter.has_grad() && self.library.updates_on_card(parameter);
            let parameters: Vec<Tensor> = self.groups[group].iter().filter(updated).cloned().collect();
            self.step_group(torch, &parameters);
        }
    }

    /// The step of some parameters of one group.
    pub(crate) fn step_group(&mut self, torch: &Torch, parameters: &[Tensor]) {
        for parameter in parameters {
            if !self.states.contains_key(&parameter.id()) {
                let states = self.new_states(torch, parameter);
                self.states.insert(parameter.id(), states);
            }
        }
        let Library::Torch(implementation) = self.library else { return };
        match self.kind {
            Kind::Adam => adam(torch, parameters, implementation),
            Kind::Sgd { .. } | Kind::Lion => {}
            Kind::Adafactor if implementation == TorchOptimizer::Foreach => {
                adafactor::foreach(torch, parameters)
            }
            Kind::Adafactor => adafactor::for_loop(torch, parameters),
            Kind::Muon { nesterov, steps } => muon::step(torch, parameters, nesterov, steps),
        }
    }

    fn new_states(&mut self, torch: &Torch, parameter: &Tensor) -> Vec<Tensor> {
        let shapes = self.kind.states(parameter.shape());
        match &self.library {
            library @ (Library::Torch(_) | Library::Torchao) => {
                let is_fused = matches!(library, Library::Torch(TorchOptimizer::Fused) | Library::Torchao);
                let has_step = self.kind == Kind::Adam && is_fused;
                let step = has_step.then(|| torch.scalar(DType::F32));
                let state = |shape: &Shape| {
                    torch.with_purpose(Purpose::OptimizerState, || torch.tensor(*shape, parameter.dtype()))
                };
                step.into_iter().chain(shapes.iter().map(state)).collect()
            }
            Library::Bitsandbytes(states) => torch.with_purpose(Purpose::OptimizerState, || {
                states.new_states(torch, parameter, shapes.len(), &mut self.codes)
            }),
        }
    }

    /// Keeps the codes with a parameter: each has its own optimizer, which makes its own.
    pub(crate) fn keep_codes_with(&mut self, parameter: &Tensor) {
        if let Some(states) = self.states.get_mut(&parameter.id()) {
            states.append(&mut self.codes);
        }
    }

    /// `optimizer.zero_grad()`
    pub(crate) fn zero_grad(&self, set_to_none: bool) {
        if set_to_none {
            self.parameters().for_each(|parameter| parameter.set_grad(None));
        }
    }
}

/// The temporaries of a step of AdamW and Adam.
fn adam(torch: &Torch, parameters: &[Tensor], implementation: TorchOptimizer) {
    match implementation {
        TorchOptimizer::Fused | TorchOptimizer::Torchao => {}
        TorchOptimizer::Foreach => {
            // torch._foreach_sqrt(exp_avg_sqs)
            let _roots: Vec<Tensor> = parameters.iter().map(|parameter| torch.like(parameter)).collect();
        }
        TorchOptimizer::ForLoop => {
            let mut denominator = None;
            for parameter in parameters {
                // (exp_avg_sq.sqrt() / correction).add_(eps)
                let root = torch.like(parameter);
                let next = torch.like(parameter);
                drop(root);
                drop(denominator.replace(next));
            }
        }
    }
}

/// `torch.nn.utils.clip_grad_norm_(parameters, max_norm)`: a norm of each gradient, the norm of these, and the
/// coefficient. Returns the norm.
pub(crate) fn clip<'a>(torch: &Torch, parameters: impl Iterator<Item = &'a Tensor>) -> Option<Tensor> {
    // Elements that a block of the multi-tensor kernel takes.
    const CHUNK: usize = 65536;
    let gradients: Vec<Tensor> = parameters.filter_map(Tensor::grad).collect();
    let dtype = gradients.first().map(Tensor::dtype)?;
    let norms: Vec<Tensor> = {
        let chunks = gradients.iter().map(|gradient| gradient.elements().div_ceil(CHUNK));
        let count = gradients.len();
        let _scratch = match torch.rules.norm_scratch {
            NormScratch::Chunks => {
                vec![torch.storage(8 * (count as u64 + 1)), torch.storage(4 * chunks.sum::<usize>() as u64)]
            }
            NormScratch::MostChunks => {
                vec![torch.storage(4 * (count * chunks.max().unwrap_or(0)) as u64)]
            }
        };
        gradients.iter().map(|gradient| torch.scalar(gradient.dtype())).collect()
    };
    let total = {
        let stacked = torch.tensor(Shape::new(&[norms.len()]), dtype);
        // Norms of shards: the ranks sum a copy of their squares.
        let _of_ranks = torch.fully_shard.get().map(|_| {
            let _squares = torch.like(&stacked);
            let _sums = torch.like(&stacked);
            torch.like(&stacked)
        });
        torch.scalar(dtype)
    };
    drop(norms);
    let _coefficient = {
        let _increased = torch.scalar(dtype);
        let _inverse = torch.scalar(dtype);
        torch.scalar(dtype)
    };
    let _clamped = torch.scalar(dtype);
    Some(total)
}
