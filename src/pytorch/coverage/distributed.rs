//! What the prediction of several ranks covers.

use super::{Covered, NotCovered, accumulates_in_fp32, not_covered, sharded};
use crate::transformers;
use spec::{
    KeywordEnum, RunConfig, Shard, TorchCheckpoint, TorchKernels, TorchOptions, TorchProgram,
    TransformersVersion, Update,
};

/// Checks what several ranks do.
pub(super) fn check(config: &RunConfig, options: TorchOptions) -> Covered {
    if config.ranks() == 1 {
        return Ok(());
    }
    let strategy = &config.strategy;
    if options.program == TorchProgram::Trainer {
        return not_covered(
            "several ranks (parallel.data) of Trainer: use torch_program = \"modules\" or \"transformers\"",
        );
    }
    if !config.trains() {
        return match strategy.parallel.shard {
            Shard::Parameters => not_covered("inference with sharded parameters (parallel.shard)"),
            Shard::None | Shard::Optimizer | Shard::Gradients => Ok(()),
        };
    }
    if options.program == TorchProgram::Transformers {
        of_library(config, options)?;
    }
    match strategy.parallel.shard {
        Shard::None => {}
        Shard::Optimizer => {
            return not_covered(
                "sharded optimizer states (parallel.shard = \"optimizer\"), of which ZeroRedundancyOptimizer gives each rank \
                 those of whole parameters",
            );
        }
        Shard::Gradients => {
            return not_covered(
                "sharded gradients of whole parameters (parallel.shard = \"gradients\"), for which PyTorch has no wrapper: use \
                 shard = \"parameters\", keep_gathered = true",
            );
        }
        Shard::Parameters => sharded::check(config, options)?,
    }
    if strategy.update == Update::InBackward {
        return not_covered(
            "updates in backward on several ranks: a parameter's hook runs before the ranks sum its gradient",
        );
    }
    if accumulates_in_fp32(config) {
        return not_covered(
            "gradients added to master weights by hooks on several ranks: the hook takes a gradient before the ranks sum it",
        );
    }
    if options.checkpoint == TorchCheckpoint::Reentrant && strategy.loss_chunks > 1 {
        return not_covered(
            "reentrant checkpoints of the loss on several ranks: the head has a gradient for each slice",
        );
    }
    Ok(())
}

/// Checks the models of the library that several ranks train.
fn of_library(config: &RunConfig, options: TorchOptions) -> Covered {
    let strategy = &config.strategy;
    if options.transformers != TransformersVersion::V5_24 {
        let version = options.transformers.keyword();
        return Err(NotCovered(format!("several ranks (parallel.data) with transformers {version}")));
    }
    if options.kernels == TorchKernels::Liger || strategy.loss_chunks > 1 {
        return not_covered("liger-kernel on several ranks (parallel.data)");
    }
    match transformers::four_bit(config) {
        Some(_) => not_covered("weights of four bits on several ranks (parallel.data)"),
        None => Ok(()),
    }
}
