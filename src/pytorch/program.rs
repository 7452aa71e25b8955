//! The training script of a run: start-up, steps and evaluations.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::autograd::backward;
use crate::card::Card;
use crate::coverage::{self, NotCovered};
use crate::distributed::DistributedDataParallel;
use crate::fully_shard::FullyShard;
use crate::grad_scaler::GradScaler;
use crate::list::List;
use crate::module::{Module, dtype_of};
use crate::network::{Inputs, Network, PartType};
use crate::optimizer::{Optimizer, SharedOptimizer, clip, optimizers};
use crate::outputs::Outputs;
use crate::rules;
use crate::sequence::{Event, Phase, Purpose, Sequence};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use crate::trained::TrainedParameter;
use crate::trainer::Trainer;
use crate::transformers::CausalLm;
use graph::forward_pass;
use spec::{
    EmptyCache, EvaluationPass, Gradients, InputDtype, Leak, PaddedLengths, PaddedMicroBatch, Precision,
    RunConfig, TorchOptions, TorchProgram, TorchVersion, Update,
};

/// Steps after which the allocations of a step repeat: optimizer states are made in the first.
pub(crate) const STEPS: usize = 4;

/// The sequence of a run's allocator calls on a card in a version of PyTorch.
///
/// # Errors
/// The run is not covered.
pub fn sequence(
    config: &RunConfig,
    card: Card,
    version: TorchVersion,
    options: TorchOptions,
) -> Result<Sequence, NotCovered> {
    sequence_with(config, Torch::new(card, rules::of(version), options))
}

/// The same with at most two of equal products in a row, such as those of each sample of a convolution. The second one leaves
/// the allocator as the first did, so the peaks are the same.
pub(crate) fn shortened_sequence(
    config: &RunConfig,
    card: Card,
    version: TorchVersion,
    options: TorchOptions,
) -> Result<Sequence, NotCovered> {
    let mut torch = Torch::new(card, rules::of(version), options);
    torch.most_products = 2;
    sequence_with(config, torch)
}

fn sequence_with(config: &RunConfig, torch: Torch) -> Result<Sequence, NotCovered> {
    let Torch { card, options, rules, .. } = torch;
    coverage::check(config, &card, options)?;
    let scales_loss = coverage::scales_loss(config);
    // Of all ranks, the first has the most samples.
    let config = &*config.of_rank(0);
    rules.check(&card)?;
    rules.check_libraries(config, options)?;
    match options.program {
        TorchProgram::Modules | TorchProgram::Transformers => {
            let mut program = Program::start(&torch, config, scales_loss)?;
            recorded(&torch, || program.run())
        }
        TorchProgram::Trainer => {
            let mut program = Trainer::start(&torch, config)?;
            recorded(&torch, || program.run())
        }
    }
}

/// Runs a program. Returns its sequence, in which what the program still holds is not released.
fn recorded(torch: &Torch, run: impl FnOnce()) -> Result<Sequence, NotCovered> {
    torch.with_purpose(Purpose::Activation, run);
    match torch.take_refusal() {
        Some(reason) => Err(reason),
        None => Ok(torch.take_sequence()),
    }
}

/// Checks the operations of a run's graph.
///
/// # Errors
/// The graph has an operation that is not covered.
pub(crate) fn check_graph(config: &RunConfig) -> Result<(), NotCovered> {
    match config.model.sequential() {
        Some(_) => Ok(()),
        None => coverage::check_operations(config, &forward_pass(config, config.micro_batch())),
    }
}

/// The samples of a batch and, if lengths vary, their length.
type BatchSizes = (usize, Option<usize>);

/// A module for full micro-batches, and one for the smaller last one. They share parameters and buffers.
struct Modules<'a> {
    config: &'a RunConfig,
    full: Rc<dyn Network>,
    tail: Option<Rc<dyn Network>>,
    /// The modules of other batches.
    others: RefCell<BTreeMap<BatchSizes, Rc<dyn Network>>>,
}

struct Program<'a> {
    torch: &'a Torch,
    config: &'a RunConfig,
    modules: Modules<'a>,
    trained: Vec<TrainedParameter>,
    optimizers: Vec<SharedOptimizer>,
    scaler: Option<GradScaler>,
    autocast: Option<DType>,
    /// The wrapper of a model that several ranks train.
    distributed: Option<DistributedDataParallel>,
    scales_loss: bool,
    leaked: Vec<Tensor>,
}

impl<'a> Program<'a> {
    fn start(torch: &'a Torch, config: &'a RunConfig, scales_loss: bool) -> Result<Program<'a>, NotCovered> {
        torch.mark(Event::Phase(Phase::Start));
        let modules = Modules::new(torch, config)?;
        let is_sharded = coverage::is_fully_sharded(config);
        let distributed = match coverage::is_distributed(config) && !is_sharded {
            true => Some(DistributedDataParallel::new(torch, &*modules.full, config.ranks())?),
            false => None,
        };
        if is_sharded {
            let keeps_gathered = config.strategy.parallel.keep_gathered;
            let dtype = dtype_of(config.strategy.params.dtype());
            let wrap = || FullyShard::new(torch, &*modules.full, config.ranks(), dtype, keeps_gathered);
            torch.fully_shard.get_or_init(wrap);
        }
        let parameters = match torch.fully_shard.get() {
            Some(sharded) => sharded.shards().to_vec(),
            None => modules.full.parameters(),
        };
        let trained = match config.trains() {
            true => TrainedParameter::of(torch, config, &parameters),
            false => Vec::new(),
        };
        let optimizers = optimizers(config, &trained, &*modules.full, torch.options);
        register_hooks(config, &trained, &optimizers);
        let strategy = &config.strategy;
        let scales =
            config.trains() && strategy.precision == Precision::Fp16 && strategy.loss_scale.is_some();
        Ok(Program {
            torch,
            config,
            modules,
            trained,
            optimizers,
            scaler: scales.then(GradScaler::default),
            autocast: coverage::autocast(config),
            distributed,
            scales_loss,
            leaked: Vec::new(),
        })
    }

    /// The steps; the last two are followed by evaluations. All steps but the first are alike, and all evaluations, unless
    /// steps differ: then they are those of the run.
    fn run(&mut self) {
        let torch = self.torch;
        if let Some(steps) = coverage::simulated_steps(self.config) {
            for step in 0..steps {
                self.step(step);
                if self.config.is_evaluated_after(step) {
                    self.evaluate_between();
                }
            }
            return;
        }
        if torch.fully_shard.get().is_some() {
            // Hooks have states: an evaluation changes the step after it.
            for step in 0..STEPS {
                self.step(step);
                if step >= 2 {
                    self.evaluate_between();
                }
            }
            return;
        }
        let first = torch.part(|| self.step(0));
        let mut step = torch.part(|| match self.keeps_only_states() {
            true => torch.repeat_without_survivors(&first, || self.step(1)),
            false => self.step(1),
        });
        let mut evaluation = None;
        for number in 2..STEPS {
            match self.distributed {
                // The second step replaces the buckets.
                Some(_) if number == 2 => step = torch.part(|| self.step(number)),
                _ => torch.repeat(&step, || self.step(number)),
            }
            match &evaluation {
                None => evaluation = Some(torch.part(|| self.evaluate_between())),
                Some(evaluation) => torch.repeat(evaluation, || self.evaluate_between()),
            }
        }
    }

    /// Whether only optimizer states and the loss scale, which the first step makes, outlive a step.
    fn keeps_only_states(&self) -> bool {
        let strategy = &self.config.strategy;
        strategy.gradients == Gradients::Free && strategy.leak.is_none() && self.distributed.is_none()
    }

    /// A step, counted from 0.
    fn step(&mut self, step: usize) {
        self.torch.mark(Event::Step);
        if self.config.trains() {
            self.train(step);
        } else {
            self.torch.mark(Event::Phase(Phase::Forward));
            self.evaluate(1, EvaluationPass::NoGrad, &|lengths, _, micro_batch| {
                lengths.training_batch(step, micro_batch)
            });
        }
        if self.config.strategy.empty_cache != EmptyCache::Never {
            self.torch.mark(Event::EmptyCache);
        }
    }

    /// The evaluation between two steps of training.
    fn evaluate_between(&self) {
        if let Some(evaluation) = self.config.evaluation.as_ref().filter(|_| self.config.trains()) {
            self.torch.mark(Event::Phase(Phase::Evaluation));
            let batches = coverage::evaluated_batches(self.config, evaluation);
            self.evaluate(batches, self.config.strategy.evaluation_pass, &PaddedLengths::evaluation_batch);
        }
    }

    /// `train_step`, whose variables hold the last batch and loss until it returns.
    fn train(&mut self, step: usize) {
        let Program { torch, config, .. } = *self;
        let strategy = &config.strategy;
        let micro_batches = config.micro_batches();
        let mut variables = Variables::default();
        let last_differs = self.modules.tail.is_some()
            || strategy.empty_cache == EmptyCache::Micro
            || coverage::is_distributed(config);
        let of_micro_batch = |micro_batch| {
            torch.mark(Event::Phase(Phase::Forward));
            let is_last = micro_batch + 1 == micro_batches;
            let padded = config.lengths.as_ref().map(|lengths| lengths.training_batch(step, micro_batch));
            let module = self.modules.of(is_last, padded.map(|padded| padded.length));
            if let Some(distributed) = &self.distributed {
                distributed.set_sums(is_last);
            }
            if let Some(sharded) = torch.fully_shard.get() {
                sharded.set_reduces(is_last || config.shards_gradients());
            }
            let (loss, logits) = self.loss(module, padded, true, &mut variables);
            match strategy.leak {
                Some(Leak::Loss | Leak::Graph) => self.leaked.push(loss.clone()),
                Some(Leak::Logits) => self.leaked.extend(logits.clone()),
                None => {}
            }
            variables.logits = logits.filter(|_| coverage::holds_logits(config));
            torch.mark(Event::Phase(Phase::Backward));
            self.backward(loss);
            if strategy.empty_cache == EmptyCache::Micro && !is_last {
                torch.mark(Event::EmptyCache);
            }
        };
        match coverage::simulated_steps(config) {
            Some(_) => (0..micro_batches).for_each(of_micro_batch),
            None => torch.iterations(micro_batches, last_differs, of_micro_batch),
        }
        if strategy.update == Update::InBackward {
            return;
        }
        torch.mark(Event::Phase(Phase::Update));
        let frees = strategy.gradients == Gradients::Free;
        if !coverage::accumulates_in_fp32(config) {
            self.trained.iter().for_each(|each| each.copy_gradient(torch, frees));
        }
        let (scales, clips) = (self.scaler.is_some(), config.train.clip_norm.is_some());
        let mut unscaled = Vec::new();
        let mut unscale = |optimizer: &Optimizer| {
            if scales {
                unscaled.extend(GradScaler::unscale(torch, optimizer, clips));
            }
        };
        if clips {
            self.optimizers.iter().for_each(|optimizer| unscale(&optimizer.borrow()));
            clip(torch, self.trained.iter().map(TrainedParameter::updated));
        }
        for optimizer in &self.optimizers {
            let mut optimizer = optimizer.borrow_mut();
            if !clips {
                unscale(&optimizer);
            }
            let adds = scales && clips;
            let _overflows = adds.then(|| GradScaler::sum_of_overflows(torch, &optimizer));
            optimizer.step(torch);
        }
        drop(unscaled);
        self.optimizers.iter().for_each(|optimizer| optimizer.borrow().zero_grad(frees));
    }

    /// Moves a micro-batch to the device and computes its loss. `padded`: if lengths vary.
    fn loss(
        &self,
        module: Rc<dyn Network>,
        padded: Option<PaddedMicroBatch>,
        trains: bool,
        variables: &mut Variables,
    ) -> (Tensor, Option<Tensor>) {
        let torch = self.torch;
        let (input, targets) = module.batch();
        let third = coverage::has_third(torch, self.config).then_some((input.0, DType::I64));
        variables.batch[0] = Some(self.input(input));
        for (variable, part) in variables.batch[1..].iter_mut().zip([targets, third]) {
            if let Some((shape, dtype)) = part {
                *variable = Some(torch.tensor(shape, dtype));
            }
        }
        let [Some(tokens), targets, third] = &variables.batch else { unreachable!("assigned") };
        let hides_tokens = padded.is_none_or(|padded| padded.has_padding);
        let inputs = Inputs { tokens, targets: targets.as_ref(), third: third.as_ref(), hides_tokens };
        let forward = || match torch.fully_shard.get() {
            Some(sharded) => sharded.forward(torch, || module.loss(torch, inputs, trains)),
            None => module.loss(torch, inputs, trains),
        };
        // The script evaluates the model without its wrapper.
        let wrapper = self.distributed.as_ref().filter(|_| trains);
        let (loss, logits) = torch.with_autocast(self.autocast, || match wrapper {
            Some(distributed) => distributed.forward(torch, forward),
            None => forward(),
        });
        variables.loss = Some(loss.clone());
        (loss, logits)
    }

    /// The input of a batch on the device: ids, or numbers, which `input_dtype` may move in 16 bits.
    fn input(&self, (shape, dtype): PartType) -> Tensor {
        let moved_as = self.config.strategy.input_dtype;
        let is_widened = moved_as != InputDtype::Fp32;
        let _narrow = is_widened.then(|| self.torch.tensor(shape, dtype_of(moved_as.dtype())));
        self.torch.tensor(shape, dtype)
    }

    /// `(loss * share).backward()`; to a sum, each micro-batch adds its own.
    fn backward(&mut self, loss: Tensor) {
        let torch = self.torch;
        let retains = self.config.strategy.leak == Some(Leak::Graph);
        let mut root = loss;
        if self.scales_loss {
            root = crate::functions::scale(torch, &root);
        }
        if let Some(scaler) = &mut self.scaler {
            root = scaler.scale(torch, &root);
        }
        backward(torch, &root, retains);
    }

    /// Evaluates batches; the script keeps the sum of their losses as a number. `padded`: a micro-batch of a batch.
    fn evaluate(
        &self,
        batches: usize,
        pass: EvaluationPass,
        padded: &dyn Fn(&PaddedLengths, usize, usize) -> PaddedMicroBatch,
    ) {
        let (torch, config) = (self.torch, self.config);
        let own_batch = config.evaluation_batch().filter(|_| config.trains());
        let micro_batches = if own_batch.is_some() { 1 } else { config.micro_batches() };
        let collect = config.collect().filter(|_| config.trains());
        let (mut outputs, mut variables) = (Outputs::new(collect), Variables::default());
        torch.with_grad(pass == EvaluationPass::Grad, || {
            for batch in 0..batches {
                let of_micro_batch = |micro_batch| {
                    let padded = config.lengths.as_ref().map(|of| padded(of, batch, micro_batch));
                    let length = padded.map(|padded| padded.length);
                    let module = match own_batch {
                        Some(samples) => self.modules.of_samples(samples, length),
                        None => self.modules.of(micro_batch + 1 == micro_batches, length),
                    };
                    let (loss, logits) = self.loss(module, padded, false, &mut variables);
                    variables.logits = logits.filter(|_| coverage::collects_logits(config));
                    outputs.add(torch, &loss, variables.logits.as_ref());
                };
                // Copies of micro-batches would release the collected outputs of the first ones only.
                if config.steps_of_varying_lengths().is_some() || collect.is_some() {
                    (0..micro_batches).for_each(of_micro_batch);
                } else {
                    torch.iterations(micro_batches, self.modules.tail.is_some(), of_micro_batch);
                }
            }
        });
    }
}

/// The variables of a function of the script.
#[derive(Default)]
struct Variables {
    /// Tokens and targets of a micro-batch and, if documents are packed, the starts of the documents, or an attention
    /// mask, i64[B, T].
    batch: [Option<Tensor>; 3],
    loss: Option<Tensor>,
    /// Of an evaluation that collects them.
    logits: Option<Tensor>,
}

impl<'a> Modules<'a> {
    fn new(torch: &Torch, config: &'a RunConfig) -> Result<Modules<'a>, NotCovered> {
        // Buffers have the length of the context, whatever the lengths of samples.
        let at_context = RunConfig { lengths: None, ..config.clone() };
        let graph = || forward_pass(&at_context, config.micro_batch());
        let full: Rc<dyn Network> = match (torch.options.program, config.model.sequential()) {
            (TorchProgram::Modules, Some(model)) => Rc::new(List::new(torch, config, model)),
            (TorchProgram::Modules, None) => Module::new(torch, config, graph())?,
            (TorchProgram::Transformers | TorchProgram::Trainer, _) => {
                Rc::new(CausalLm::new(torch, config, &graph())?)
            }
        };
        let tail = config.tail().map(|samples| full.resized(&at_context, samples));
        Ok(Modules { config, full, tail, others: RefCell::default() })
    }

    /// The module of a micro-batch. `length`: of its samples, if lengths vary.
    fn of(&self, is_last: bool, length: Option<usize>) -> Rc<dyn Network> {
        match length {
            None => Rc::clone(self.tail.as_ref().filter(|_| is_last).unwrap_or(&self.full)),
            Some(_) => {
                let tail = self.config.tail().filter(|_| is_last);
                self.of_samples(tail.unwrap_or(self.config.micro_batch()), length)
            }
        }
    }

    /// The module of a batch of this number of samples.
    fn of_samples(&self, samples: usize, length: Option<usize>) -> Rc<dyn Network> {
        let mut others = self.others.borrow_mut();
        let module = others.entry((samples, length)).or_insert_with(|| {
            let of_length = length.map(|length| self.config.at_length(length));
            let config = of_length.as_ref().unwrap_or(self.config);
            self.full.resized(config, samples)
        });
        Rc::clone(module)
    }
}

/// Registers the hooks of the trained parameters, which run when a gradient is complete.
fn register_hooks(config: &RunConfig, trained: &[TrainedParameter], optimizers: &[SharedOptimizer]) {
    for each in trained {
        if config.strategy.update == Update::InBackward {
            let updates = |optimizer: &&SharedOptimizer| {
                optimizer.borrow().parameters().any(|parameter| parameter.id() == each.updated().id())
            };
            let optimizer = optimizers.iter().find(updates).expect("each trained parameter has an optimizer");
            let optimizer = Rc::downgrade(optimizer);
            each.update_in_hook(move |torch, parameter| {
                let optimizer = optimizer.upgrade().expect("the script holds its optimizers");
                let mut optimizer = optimizer.borrow_mut();
                optimizer.step_group(torch, std::slice::from_ref(parameter));
                optimizer.keep_codes_with(parameter);
            });
        } else if coverage::accumulates_in_fp32(config) {
            each.accumulate_in_hook();
        }
    }
}
