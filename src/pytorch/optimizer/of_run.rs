//! The optimizers of a run's configuration.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Kind, Library, Optimizer, StateBits, States};
use crate::network::Network;
use crate::tensor::Tensor;
use crate::trained::TrainedParameter;
use spec::{Optimizer as OptimizerConfig, OptimizerState, RunConfig, TorchOptions};

pub(crate) type SharedOptimizer = Rc<RefCell<Optimizer>>;

/// The optimizers of a run: with Muon, one for the matrices of blocks and one for the rest. Parameters with and without
/// weight decay are groups of their own.
pub(crate) fn optimizers(
    config: &RunConfig,
    trained: &[TrainedParameter],
    network: &dyn Network,
    options: TorchOptions,
) -> Vec<SharedOptimizer> {
    let implementation = options.optimizer;
    let kind = match &config.train.optimizer {
        OptimizerConfig::Sgd(sgd) => Kind::Sgd { momentum: sgd.momentum != 0.0 },
        OptimizerConfig::Lion(_) => Kind::Lion,
        OptimizerConfig::Adafactor(_) => Kind::Adafactor,
        OptimizerConfig::AdamW(_) | OptimizerConfig::Adam(_) | OptimizerConfig::Muon(_) => Kind::Adam,
    };
    let library = match config.has_bitsandbytes_optimizer(options) {
        _ if config.has_torchao_optimizer(options) => Library::Torchao,
        false => Library::Torch(implementation),
        true => Library::Bitsandbytes(States {
            bits: state_bits(config, trained, network),
            are_paged: config.strategy.offload.optimizer,
        }),
    };
    let matrices = match &config.train.optimizer {
        OptimizerConfig::Muon(_) => network.block_matrices(),
        _ => Vec::new(),
    };
    let is_matrix =
        |each: &&TrainedParameter| matrices.iter().any(|matrix| matrix.id() == each.parameter().id());
    let (of_blocks, rest): (Vec<&TrainedParameter>, Vec<&TrainedParameter>) =
        trained.iter().partition(is_matrix);
    let updated = |each: &TrainedParameter| each.updated().clone();
    let groups = config.train.optimizer.groups();
    let last = groups.last().expect("the remaining parameters are a group");
    let (decayed, others): (Vec<Tensor>, Vec<Tensor>) =
        rest.into_iter().map(updated).partition(|parameter| last.decays(parameter.shape().dims().len()));
    let muon = match &config.train.optimizer {
        OptimizerConfig::Muon(muon) => {
            let kind = Kind::Muon { nesterov: muon.nesterov, steps: muon.ns_steps };
            let groups = vec![of_blocks.into_iter().map(updated).collect()];
            Some(Optimizer::new(kind, Library::Torch(implementation), groups))
        }
        _ => None,
    };
    let all = muon.into_iter().chain([Optimizer::new(kind, library, vec![decayed, others])]);
    all.filter(|optimizer| optimizer.parameters().next().is_some())
        .map(|each| Rc::new(RefCell::new(each)))
        .collect()
}

fn state_bits(config: &RunConfig, trained: &[TrainedParameter], network: &dyn Network) -> StateBits {
    let strategy = &config.strategy;
    if strategy.optimizer_state != OptimizerState::EightBit {
        return StateBits::Fp32;
    }
    let tables = if strategy.quantize.embeddings { Vec::new() } else { network.embeddings() };
    let is_table = |each: &&TrainedParameter| tables.iter().any(|table| table.id() == each.parameter().id());
    let except = trained.iter().filter(is_table).map(|each| each.updated().clone()).collect();
    StateBits::Eight { from: strategy.quantize.from, except }
}
