//! What the prediction of `fully_shard` covers.

use super::{Covered, not_covered};
use crate::module::dtype_of;
use crate::transformers;
use spec::{
    ActivationOffload, Leak, Optimizer, OptimizerState, Parallel, Precision, Recompute, RunConfig,
    StorageDtype, TorchCheckpoint, TorchOptimizer, TorchOptions,
};

/// Checks a run whose parameters are sharded.
pub(super) fn check(config: &RunConfig, options: TorchOptions) -> Covered {
    let strategy = &config.strategy;
    if config.model.sequential().is_some() {
        return not_covered("sharded parameters (parallel.shard) of layers in a list, which have no blocks");
    }
    if strategy.parallel.ahead != Parallel::default().ahead {
        return not_covered("parallel.ahead with fully_shard, whose default is predicted: use ahead = 1");
    }
    precision(config)?;
    optimizer(config, options)?;
    match strategy.recompute {
        Recompute::Segments(_) => {
            return not_covered("checkpoints of several blocks (recompute.segments) with sharded parameters");
        }
        _ if options.checkpoint == TorchCheckpoint::Reentrant && checkpoints(config) => {
            return not_covered("reentrant checkpoints with sharded parameters (parallel.shard)");
        }
        _ => {}
    }
    if strategy.offload.activations != ActivationOffload::Nothing {
        return not_covered(
            "offloaded activations with sharded parameters: save_on_cpu copies gathered weights to the host, too",
        );
    }
    if let Some(lora) = &strategy.lora {
        let dtype = dtype_of(strategy.params.dtype());
        if transformers::dtype(config) != dtype || transformers::adapter_dtype(config) != dtype {
            return not_covered(
                "sharded adapters (lora) of another dtype than the base: use lora.base = \"params\", master_weights = false",
            );
        }
        if !lora.trained.is_empty() {
            return not_covered("layers trained beside sharded adapters (lora.trained)");
        }
    }
    if strategy.leak == Some(Leak::Graph) {
        return not_covered("kept graphs (leak = \"graph\") with sharded parameters (parallel.shard)");
    }
    Ok(())
}

fn checkpoints(config: &RunConfig) -> bool {
    config.strategy.recompute != Recompute::None || config.strategy.loss_chunks > 1
}

fn precision(config: &RunConfig) -> Covered {
    let strategy = &config.strategy;
    if strategy.params == StorageDtype::Fp32 && strategy.precision == Precision::Fp16 {
        return not_covered(
            "precision = \"fp16\" with sharded fp32 parameters (parallel.shard): use precision = \"bf16\"",
        );
    }
    Ok(())
}

fn optimizer(config: &RunConfig, options: TorchOptions) -> Covered {
    if matches!(config.train.optimizer, Optimizer::Sgd(_)) && options.optimizer == TorchOptimizer::Fused {
        return not_covered(
            "fused SGD of sharded parameters (parallel.shard), which PyTorch lacks for DTensors: use torch_optimizer = \"foreach\"",
        );
    }
    if config.strategy.optimizer_state == OptimizerState::EightBit {
        return not_covered("8-bit optimizer states of sharded parameters (parallel.shard)");
    }
    match config.train.optimizer {
        Optimizer::AdamW(_) | Optimizer::Adam(_) | Optimizer::Sgd(_) => Ok(()),
        _ => not_covered("optimizers of sharded parameters (parallel.shard) other than AdamW, Adam and SGD"),
    }
}
