//! The runs that `Trainer` can train.

use crate::coverage::{NotCovered, autocast, has_master_weights, holds_logits, simulated_steps};
use crate::tensor::DType;
use spec::{EmptyCache, EvaluationPass, Gradients, LossScale, Optimizer, RunConfig, TorchOptions, Update};

/// Checks that `Trainer` has the run's keys.
pub(crate) fn check(config: &RunConfig, options: TorchOptions) -> Result<(), NotCovered> {
    let strategy = &config.strategy;
    let has_fp16_autocast = autocast(config) == Some(DType::F16);
    let reasons = [
        (!config.trains(), "a run without training"),
        (config.tail().is_some(), "micro-batches of different sizes (accumulate)"),
        (strategy.update == Update::InBackward, "updates in backward: use update = \"after_backward\""),
        (strategy.gradients == Gradients::Zero, "gradients = \"zero\": use \"free\""),
        (strategy.leak.is_some() || holds_logits(config), "forgotten references (leak, keep)"),
        (
            strategy.empty_cache == EmptyCache::Step,
            "empty_cache = \"step\": Trainer empties the cache in each micro-batch, use \"micro\"",
        ),
        (strategy.evaluation_pass == EvaluationPass::Grad, "evaluation_pass = \"grad\""),
        (has_master_weights(config), "master weights: use params = \"fp32\", or master_weights = false"),
        (
            has_fp16_autocast && strategy.loss_scale.is_none(),
            "fp16 without a loss scale: use loss_scale = \"dynamic\"",
        ),
        (
            !has_fp16_autocast && strategy.loss_scale.is_some(),
            "a loss scale with 16-bit params: Trainer has one under autocast only",
        ),
        (
            matches!(strategy.loss_scale, Some(LossScale::Static(_))),
            "a constant loss scale: use loss_scale = \"dynamic\"",
        ),
        (
            config.has_bitsandbytes_optimizer(options) && strategy.quantize.embeddings,
            "8-bit states of embeddings: use quantize.embeddings = false",
        ),
        (matches!(config.train.optimizer, Optimizer::Muon(_)), "Muon: Trainer has one optimizer"),
        (config.train.optimizer.groups()[0].decays(1), "weight decay of vectors: use decay = \"matrices\""),
    ];
    match reasons.into_iter().find(|(applies, _)| *applies) {
        Some((_, reason)) => Err(NotCovered(format!("{reason} (torch_program = \"trainer\")"))),
        None => Ok(()),
    }
}

/// Whether a `GradScaler` scales the loss.
pub(super) fn is_scaled(config: &RunConfig) -> bool {
    config.strategy.loss_scale.is_some() && autocast(config) == Some(DType::F16)
}

/// `per_device_eval_batch_size`
pub(crate) fn evaluation_batch(config: &RunConfig) -> usize {
    config.evaluation_batch().unwrap_or(config.micro_batch())
}

/// The forward passes for a batch of an evaluation.
pub(super) fn evaluated_micro_batches(config: &RunConfig) -> usize {
    if config.evaluation_batch().is_some() { 1 } else { config.micro_batches() }
}

/// The forward passes of an evaluation.
pub(crate) fn evaluated_batches(config: &RunConfig) -> usize {
    let micro_batches = evaluated_micro_batches(config);
    config.evaluation.as_ref().map_or(0, |evaluation| evaluation.batches.saturating_mul(micro_batches))
}

/// Forward passes that are simulated: those of two evaluations, whose losses are collected, and the micro-batches of a step,
/// whose batches are on the device together; if lengths vary, all of the run.
pub(crate) fn simulated_passes(config: &RunConfig) -> usize {
    let steps = simulated_steps(config);
    let evaluations =
        steps.map_or(2, |steps| (0..steps).filter(|step| config.is_evaluated_after(*step)).count());
    let trained = config.micro_batches().saturating_mul(steps.unwrap_or(1));
    evaluated_batches(config).saturating_mul(evaluations).saturating_add(trained)
}
