//! The training script of a run: start-up, steps and evaluations.

use std::rc::Rc;

use crate::autograd::backward;
use crate::card::Card;
use crate::coverage::{self, NotCovered};
use crate::grad_scaler::GradScaler;
use crate::module::{Module, dtype_of};
use crate::optimizer::{Implementation, Kind, Optimizer};
use crate::sequence::{Event, Phase, Purpose, Sequence};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use graph::forward_pass;
use spec::{
    EmptyCache, EvaluationPass, Gradients, Leak, Optimizer as OptimizerConfig, Precision, RunConfig,
    StorageDtype, Update,
};

/// Steps after which the allocations of a step repeat: optimizer states are made in the first.
const STEPS: usize = 4;

/// The sequence of a run's allocator calls on a card.
///
/// # Errors
/// The run is not covered.
pub fn sequence(
    config: &RunConfig,
    card: Card,
    implementation: Implementation,
) -> Result<Sequence, NotCovered> {
    coverage::check(config, &card)?;
    let torch = Torch::new(card);
    let mut program = Program::start(&torch, config, implementation)?;
    torch.with_purpose(Purpose::Activation, || program.run());
    Ok(torch.take_sequence())
}

/// Checks the operations of a run's graph.
///
/// # Errors
/// The graph has an operation that is not covered.
pub(crate) fn check_graph(config: &RunConfig) -> Result<(), NotCovered> {
    coverage::check_operations(config, &forward_pass(config, &config.model, config.micro_batch()))
}

/// A module for full micro-batches, and one for the smaller last one.
struct Modules {
    full: Rc<Module>,
    tail: Option<Rc<Module>>,
}

struct Program<'a> {
    torch: &'a Torch,
    config: &'a RunConfig,
    modules: Modules,
    optimizer: Optimizer,
    implementation: Implementation,
    scaler: Option<GradScaler>,
    autocast: Option<DType>,
    leaked: Vec<Tensor>,
}

impl<'a> Program<'a> {
    fn start(
        torch: &'a Torch,
        config: &'a RunConfig,
        implementation: Implementation,
    ) -> Result<Program<'a>, NotCovered> {
        torch.mark(Event::Phase(Phase::Start));
        let full = Module::new(torch, config, forward_pass(config, &config.model, config.micro_batch()))?;
        let tail = config.tail().map(|samples| full.resized(forward_pass(config, &config.model, samples)));
        let optimizer = optimizer(config, &full, implementation);
        let strategy = &config.strategy;
        let autocast = match strategy.params {
            StorageDtype::Fp32 => Some(dtype_of(strategy.precision.dtype())).filter(|dtype| dtype.is_half()),
            StorageDtype::Bf16 | StorageDtype::Fp16 => None,
        };
        let scales =
            config.trains() && strategy.precision == Precision::Fp16 && strategy.loss_scale.is_some();
        Ok(Program {
            torch,
            config,
            modules: Modules { full, tail },
            optimizer,
            implementation,
            scaler: scales.then(GradScaler::default),
            autocast,
            leaked: Vec::new(),
        })
    }

    /// The steps; the last two are followed by evaluations. All steps but the first are alike, and all evaluations.
    fn run(&mut self) {
        let torch = self.torch;
        self.step();
        let step = torch.part(|| self.step());
        let mut evaluation = None;
        for _ in 2..STEPS {
            torch.again(&step, || self.step());
            match &evaluation {
                None => evaluation = Some(torch.part(|| self.evaluate_between())),
                Some(evaluation) => torch.again(evaluation, || self.evaluate_between()),
            }
        }
    }

    fn step(&mut self) {
        self.torch.mark(Event::Step);
        if self.config.trains() {
            self.train();
        } else {
            self.torch.mark(Event::Phase(Phase::Forward));
            self.evaluate(1, EvaluationPass::NoGrad);
        }
        if self.config.strategy.empty_cache != EmptyCache::Never {
            self.torch.mark(Event::EmptyCache);
        }
    }

    /// The evaluation between two steps of training.
    fn evaluate_between(&self) {
        if let Some(evaluation) = self.config.evaluation.as_ref().filter(|_| self.config.trains()) {
            self.torch.mark(Event::Phase(Phase::Evaluation));
            self.evaluate(evaluation.batches.min(2), self.config.strategy.evaluation_pass);
        }
    }

    /// `train_step`, whose variables hold the last batch and loss until it returns.
    fn train(&mut self) {
        let Program { torch, config, .. } = *self;
        let strategy = &config.strategy;
        let micro_batches = config.micro_batches();
        let mut variables = Variables::default();
        torch.turns(micro_batches, |micro_batch| {
            torch.mark(Event::Phase(Phase::Forward));
            let is_last = micro_batch + 1 == micro_batches;
            let loss = self.loss(is_last, true, &mut variables);
            if strategy.leak == Some(Leak::Loss) {
                self.leaked.push(loss.clone());
            }
            torch.mark(Event::Phase(Phase::Backward));
            self.backward(loss, micro_batches);
            if strategy.empty_cache == EmptyCache::Micro && !is_last {
                torch.mark(Event::EmptyCache);
            }
        });
        if strategy.update == Update::InBackward {
            return;
        }
        torch.mark(Event::Phase(Phase::Update));
        let clips = config.train.clip_norm.is_some();
        let unscaled = self.scaler.as_ref().map(|_| GradScaler::unscale(torch, self.implementation, clips));
        if clips {
            self.optimizer.clip(torch);
        }
        // A fused optimizer is given the sum of the overflow flags of unscaled gradients.
        let sums = clips && self.implementation == Implementation::Fused && self.scaler.is_some();
        let overflows = sums.then(|| torch.scalar(DType::F32));
        self.optimizer.step(torch);
        drop((unscaled, overflows));
        self.optimizer.zero_grad(strategy.gradients == Gradients::Free);
    }

    /// Moves a micro-batch to the device and computes its loss.
    fn loss(&self, is_last: bool, trains: bool, variables: &mut Variables) -> Tensor {
        let torch = self.torch;
        let module = self.modules.of(is_last);
        for variable in &mut variables.batch {
            *variable = Some(torch.tensor(module.batch_shape(), DType::I64));
        }
        let [Some(tokens), Some(targets)] = &variables.batch else { unreachable!("both were assigned") };
        let loss = torch.with_autocast(self.autocast, || module.loss(torch, tokens, targets, trains));
        variables.loss = Some(loss.clone());
        loss
    }

    /// `(loss * share).backward()`
    fn backward(&mut self, loss: Tensor, micro_batches: usize) {
        let torch = self.torch;
        let mut root = loss;
        if micro_batches > 1 {
            root = crate::functions::scale(torch, &root);
        }
        if let Some(scaler) = &mut self.scaler {
            root = scaler.scale(torch, &root);
        }
        if self.config.strategy.update == Update::InBackward {
            let optimizer = std::cell::RefCell::new(&mut self.optimizer);
            let hook = |torch: &Torch, leaf: &Tensor| {
                optimizer.borrow_mut().step_group(torch, std::slice::from_ref(leaf));
                leaf.set_grad(None);
            };
            backward(torch, &root, Some(&hook));
        } else {
            backward(torch, &root, None);
        }
    }

    /// Evaluates batches; the script keeps the sum of their losses as a number.
    fn evaluate(&self, batches: usize, pass: EvaluationPass) {
        let mut variables = Variables::default();
        self.torch.with_grad(pass == EvaluationPass::Grad, || {
            for _ in 0..batches {
                let micro_batches = self.config.micro_batches();
                self.torch.turns(micro_batches, |micro_batch| {
                    self.loss(micro_batch + 1 == micro_batches, false, &mut variables);
                });
            }
        });
    }
}

/// The variables of a function of the script.
#[derive(Default)]
struct Variables {
    /// Tokens and targets of a micro-batch, i64[B, T].
    batch: [Option<Tensor>; 2],
    loss: Option<Tensor>,
}

impl Modules {
    fn of(&self, is_last: bool) -> Rc<Module> {
        Rc::clone(self.tail.as_ref().filter(|_| is_last).unwrap_or(&self.full))
    }
}

/// The optimizer of a run. Parameters with and without weight decay are groups of their own.
fn optimizer(config: &RunConfig, module: &Module, implementation: Implementation) -> Optimizer {
    let kind = match &config.train.optimizer {
        OptimizerConfig::Sgd(sgd) => Kind::Sgd { momentum: sgd.momentum != 0.0 },
        _ => Kind::Adam,
    };
    let trained = module.parameters().filter(|parameter| parameter.requires_grad()).cloned();
    let groups = config.train.optimizer.groups();
    let (decayed, others): (Vec<Tensor>, Vec<Tensor>) =
        trained.partition(|parameter| groups[0].decays(parameter.shape().dims().len()));
    Optimizer::new(kind, implementation, vec![decayed, others])
}
