//! The runs that `Trainer` can train.

use crate::coverage::{NotCovered, has_master_weights, holds_logits};
use spec::{EmptyCache, EvaluationPass, Gradients, LossScale, Precision, RunConfig, StorageDtype, Update};

/// Checks that `Trainer` has the run's keys.
pub(crate) fn check(config: &RunConfig) -> Result<(), NotCovered> {
    let strategy = &config.strategy;
    let reasons = [
        (!config.trains(), "a run without training"),
        (config.tail().is_some(), "micro-batches of different sizes (accumulate)"),
        (strategy.update == Update::InBackward, "updates in backward"),
        (strategy.gradients == Gradients::Zero, "gradients = \"zero\": Trainer sets them to None"),
        (strategy.leak.is_some() || holds_logits(config), "forgotten references (leak, keep)"),
        (strategy.empty_cache != EmptyCache::Never, "empty_cache"),
        (strategy.evaluation_pass == EvaluationPass::Grad, "evaluation_pass = \"grad\""),
        (has_master_weights(config), "master_weights: Trainer's optimizer updates the parameters themselves"),
        (is_scaled(config) != has_fp16_autocast(config), "fp16 without a loss scale"),
        (
            matches!(strategy.loss_scale, Some(LossScale::Static(_))),
            "a constant loss scale: Trainer's is dynamic",
        ),
        (
            config.has_bitsandbytes_optimizer() && strategy.quantize.embeddings,
            "8-bit states of embeddings: Trainer's are fp32 (quantize.embeddings)",
        ),
        (
            config.train.optimizer.groups()[0].decays(1),
            "weight decay of vectors: Trainer's is for matrices (decay)",
        ),
    ];
    match reasons.into_iter().find(|(applies, _)| *applies) {
        Some((_, reason)) => Err(NotCovered(format!("{reason} (torch_program = \"trainer\")"))),
        None => Ok(()),
    }
}

fn has_fp16_autocast(config: &RunConfig) -> bool {
    let strategy = &config.strategy;
    strategy.params == StorageDtype::Fp32 && strategy.precision == Precision::Fp16
}

/// Whether a `GradScaler` scales the loss.
pub(super) fn is_scaled(config: &RunConfig) -> bool {
    config.strategy.loss_scale.is_some() && has_fp16_autocast(config)
}

/// `per_device_eval_batch_size`
pub(crate) fn evaluation_batch(config: &RunConfig) -> usize {
    config.evaluation_batch().unwrap_or(config.micro_batch())
}

/// The forward passes of an evaluation.
pub(crate) fn evaluated_batches(config: &RunConfig) -> usize {
    let micro_batches = if config.evaluation_batch().is_some() { 1 } else { config.micro_batches() };
    config.evaluation.as_ref().map_or(0, |evaluation| evaluation.batches.saturating_mul(micro_batches))
}
