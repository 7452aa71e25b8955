//! What the prediction covers of optimizers.

use super::{Covered, NotCovered, has_master_weights, has_states, not_covered};
use crate::card::Card;
use spec::{Gradients, Optimizer, OptimizerState, Rounding, RunConfig, StorageDtype, TorchOptions, Update};

/// Checks the optimizer and its states.
pub(super) fn check(config: &RunConfig, card: &Card, options: TorchOptions) -> Covered {
    if !config.trains() {
        return Ok(());
    }
    let strategy = &config.strategy;
    match config.train.optimizer {
        Optimizer::AdamW(_) | Optimizer::Adam(_) | Optimizer::Sgd(_) => {}
        Optimizer::Lion(_) if strategy.optimizer_state == OptimizerState::Bf16 => {
            return not_covered("bf16 states of Lion: bitsandbytes has fp32 and 8 bits");
        }
        Optimizer::Lion(_) => {}
        Optimizer::Adafactor(_) | Optimizer::Muon(_)
            if strategy.optimizer_state == OptimizerState::EightBit =>
        {
            return not_covered("8-bit states of Adafactor and Muon, which bitsandbytes lacks");
        }
        Optimizer::Adafactor(ref own) if own.clip_threshold < 1.0 => {
            return not_covered("a clip_threshold below 1, which torch.optim.Adafactor refuses");
        }
        Optimizer::Muon(_) if card.capability < (8, 0) => {
            return not_covered("Muon, whose matmuls are bf16, before compute capability 8.0");
        }
        Optimizer::Adafactor(_) | Optimizer::Muon(_) => {}
    }
    let has_pages =
        matches!(config.train.optimizer, Optimizer::AdamW(_) | Optimizer::Adam(_) | Optimizer::Lion(_));
    if strategy.offload.optimizer && !has_pages {
        return not_covered(
            "offloaded states of another optimizer than AdamW, Adam and Lion, which bitsandbytes pages",
        );
    }
    let has_torchao = config.has_torchao_optimizer(options);
    if strategy.offload.optimizer && strategy.optimizer_state == OptimizerState::Bf16 && !has_torchao {
        return not_covered("offloaded bf16 states: bitsandbytes has fp32 and 8 bits");
    }
    if config.train.optimizer.groups().iter().any(|group| group.named.is_some()) {
        return not_covered("parameter groups");
    }
    if strategy.optimizer_state == OptimizerState::EightBit && !has_states(config) {
        return not_covered("8-bit states of SGD without momentum, which bitsandbytes lacks");
    }
    let has_bf16_gradients = strategy.params == StorageDtype::Bf16 && !strategy.has_master_weights();
    let is_sgd = matches!(config.train.optimizer, Optimizer::Sgd(_));
    if strategy.optimizer_state == OptimizerState::EightBit && is_sgd && has_bf16_gradients {
        return not_covered("8-bit states of SGD with bf16 gradients, for which bitsandbytes has no kernel");
    }
    if strategy.optimizer_state == OptimizerState::Bf16 && strategy.params == StorageDtype::Fp32 {
        return not_covered("bf16 optimizer states beside fp32 parameters");
    }
    if strategy.rounding != Rounding::Nearest {
        return not_covered("stochastic rounding");
    }
    Ok(())
}

/// Checks that torchao's `CPUOffloadOptimizer` is the same training. Its hooks copy gradients to the host in backward.
pub(super) fn torchao(config: &RunConfig, options: TorchOptions) -> Covered {
    if !config.has_torchao_optimizer(options) {
        return Ok(());
    }
    let strategy = &config.strategy;
    let reasons = [
        (options.program.is_of_library(), "the library's models: use torch_program = \"modules\""),
        (
            !matches!(config.train.optimizer, Optimizer::AdamW(_) | Optimizer::Adam(_)),
            "another optimizer than AdamW and Adam",
        ),
        (
            strategy.optimizer_state == OptimizerState::EightBit,
            "8-bit states: its 8- and 4-bit optimizers are compiled by torch.compile, with unknown scratch",
        ),
        (has_master_weights(config), "master weights, whose gradients have no hooks"),
        (strategy.update == Update::InBackward, "updates in backward"),
        (strategy.gradients == Gradients::Zero, "gradients that are kept: its zero_grad releases them"),
        (config.train.clip_norm.is_some(), "clipping, which comes after its copies of the gradients"),
        (
            strategy.loss_scale.is_some(),
            "a loss scale, which is divided out after its copies of the gradients",
        ),
    ];
    match reasons.into_iter().find(|(applies, _)| *applies) {
        Some((_, reason)) => Err(NotCovered(format!("torchao's CPUOffloadOptimizer with {reason}"))),
        None => Ok(()),
    }
}
