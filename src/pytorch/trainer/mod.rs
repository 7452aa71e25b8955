//! Training by `Trainer` of transformers and Accelerate 1.15.
//!
//! Its loader copies batches to the device one ahead, all micro-batches of a step before the first forward pass. The model
//! returns its outputs in fp32 under autocast, and the loss is the sum over the micro-batch divided by the number of
//! labels in the step.

mod coverage;
mod evaluation;
mod loader;

use std::rc::Rc;

pub(crate) use self::coverage::{check, evaluated_batches, evaluation_batch, simulated_passes};
use self::loader::{Batch, Loader};
use crate::autograd::backward;
use crate::coverage::{NotCovered, autocast, has_third, simulated_steps};
use crate::functions;
use crate::grad_scaler::GradScaler;
use crate::network::Network;
use crate::optimizer::clip;
use crate::optimizer::{SharedOptimizer, optimizers};
use crate::program::STEPS;
use crate::sequence::{Event, Phase};
use crate::tensor::{DType, Tensor};
use crate::torch::Torch;
use crate::trained::TrainedParameter;
use crate::transformers::{self, CausalLm, Output};
use graph::forward_pass;
use spec::{EmptyCache, ModelFamily, RunConfig, TransformersVersion};

pub(crate) struct Trainer<'a> {
    torch: &'a Torch,
    config: &'a RunConfig,
    model: Rc<CausalLm>,
    optimizer: SharedOptimizer,
    scaler: Option<GradScaler>,
    autocast: Option<DType>,
    /// `tr_loss`
    total_loss: Tensor,
    /// Whether the first label of a sample is not counted: in 5.x, in classes whose name contains `ForCausalLM`, unlike GPT-2's.
    shifts_labels: bool,
    loader: Loader,
    variables: Variables,
}

/// Variables of the training loop, which live until the next step assigns them.
#[derive(Default)]
struct Variables {
    /// The step's batches, one for each micro-batch, and their number of labels.
    batches: Vec<Batch>,
    count: Option<Tensor>,
    inputs: Option<Batch>,
    loss: Option<Tensor>,
    grad_norm: Option<Tensor>,
}

impl<'a> Trainer<'a> {
    pub(crate) fn start(torch: &'a Torch, config: &'a RunConfig) -> Result<Trainer<'a>, NotCovered> {
        torch.mark(Event::Phase(Phase::Start));
        let model = Rc::new(CausalLm::new(torch, config, &forward_pass(config, config.micro_batch()))?);
        let trained = TrainedParameter::of(torch, config, &model.parameters());
        Ok(Trainer {
            torch,
            config,
            shifts_labels: torch.options.transformers == TransformersVersion::V5_24
                && config.model.transformer().and_then(transformers::family) != Some(ModelFamily::Gpt2),
            loader: Loader::new(model.batch_shape(), has_third(torch, config)),
            optimizer: optimizers(config, &trained, &*model, torch.options)
                .pop()
                .expect("Trainer trains parameters by one optimizer"),
            scaler: coverage::is_scaled(config).then(GradScaler::default),
            autocast: autocast(config),
            total_loss: torch.scalar(DType::F32),
            variables: Variables::default(),
            model,
        })
    }

    /// The steps, of which the last two are followed by evaluations; if lengths vary, all steps and evaluations of the run.
    pub(crate) fn run(&mut self) {
        let varying = simulated_steps(self.config);
        for step in 0..varying.unwrap_or(STEPS) {
            self.step(step);
            let is_evaluated = match varying {
                Some(_) => self.config.is_evaluated_after(step),
                None => step + 2 >= STEPS,
            };
            if is_evaluated {
                self.evaluate();
            }
        }
    }

    fn step(&mut self, step: usize) {
        let (torch, lengths) = (self.torch, self.config.lengths.as_ref());
        let batches: Vec<Batch> = (0..self.config.micro_batches())
            .map(|number| self.loader.next(torch, lengths.map(|of| of.training_batch(step, number))))
            .collect();
        let count = loader::count_labels(torch, &batches, self.shifts_labels);
        self.variables.batches = batches;
        self.variables.count = Some(count);
        torch.mark(Event::Step);
        let micro_batches = self.config.micro_batches();
        let lengths_vary = self.config.lengths.is_some();
        let of_micro_batch = |micro_batch: usize| {
            self.variables.inputs = Some(self.variables.batches[micro_batch].clone());
            self.train(micro_batch);
        };
        match lengths_vary {
            true => (0..micro_batches).for_each(of_micro_batch),
            false => torch.iterations(micro_batches, false, of_micro_batch),
        }
        torch.mark(Event::Phase(Phase::Update));
        self.update();
        // The mean of the logged loss.
        torch.scalar(DType::F32);
    }

    /// `training_step`, and the sum of the losses.
    fn train(&mut self, micro_batch: usize) {
        let torch = self.torch;
        torch.mark(Event::Phase(Phase::Forward));
        let loss = {
            let Variables { batches, count, .. } = &self.variables;
            let count = count.as_ref().expect("counted before the first micro-batch");
            let loss =
                compute_loss(torch, &self.model, &batches[micro_batch], count, self.autocast, true).loss;
            if self.config.strategy.empty_cache == EmptyCache::Micro {
                torch.mark(Event::EmptyCache);
            }
            torch.mark(Event::Phase(Phase::Backward));
            // Accelerate divides it by its own gradient_accumulation_steps, 1.
            let divided = functions::scale(torch, &loss);
            let scaled = self.scaler.as_mut().map(|scaler| scaler.scale(torch, &divided));
            backward(torch, scaled.as_ref().unwrap_or(&divided), false);
            loss.detached()
        };
        self.variables.loss = Some(loss);
        // torch.isnan(loss) or torch.isinf(loss)
        torch.scalar(DType::Bool);
        {
            let _absolute = torch.scalar(DType::F32);
            torch.scalar(DType::Bool);
        }
        if self.is_v4() {
            // tr_loss = tr_loss + tr_loss_step
            self.total_loss = torch.scalar(DType::F32);
        }
    }

    fn is_v4(&self) -> bool {
        self.torch.options.transformers == TransformersVersion::V4_57
    }

    fn update(&mut self) {
        let torch = self.torch;
        if !self.is_v4() {
            self.variables.grad_norm = None;
        }
        // Without `max_grad_norm`, 5.x computes the norm all the same.
        let clips = !self.is_v4() || self.config.train.clip_norm.is_some();
        let unscaled =
            self.scaler.as_ref().map(|_| GradScaler::unscale(torch, &self.optimizer.borrow(), clips));
        if clips {
            self.variables.grad_norm = clip(torch, self.optimizer.borrow().parameters());
        }
        let sums = self.scaler.is_some() && clips;
        let overflows = sums.then(|| GradScaler::sum_of_overflows(torch, &self.optimizer.borrow()));
        self.optimizer.borrow_mut().step(torch);
        drop((unscaled, overflows));
        self.optimizer.borrow().zero_grad(true);
    }
}

/// `compute_loss`: the outputs of the model, in fp32 under autocast.
fn compute_loss(
    torch: &Torch,
    model: &CausalLm,
    batch: &Batch,
    count: &Tensor,
    autocast: Option<DType>,
    trains: bool,
) -> Output {
    let mut output =
        torch.with_autocast(autocast, || model.forward(torch, batch.inputs(), Some(count), trains));
    // ConvertOutputsToFp32
    output.logits = output.logits.map(|logits| match autocast {
        Some(_) => functions::cast(torch, &logits, DType::F32),
        None => logits,
    });
    // loss *= num_processes
    output.loss = functions::scale_in_place(torch, &output.loss);
    output
}
