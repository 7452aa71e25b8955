//! What the prediction covers of layers in a list.

use super::{Covered, masks_targets, not_covered};
use spec::{
    ActivationLayer, ActivationOffload, InputDtype, Layer, Module, Optimizer, OutputLoss, Recompute,
    RunConfig, Sequential, StorageDtype, TorchProgram,
};

/// Checks layers in a list.
pub(super) fn check(config: &RunConfig, model: &Sequential, program: TorchProgram) -> Covered {
    let strategy = &config.strategy;
    if program.is_of_library() {
        return not_covered("layers in a list (model.sequential) in a program of the transformers library");
    }
    if strategy.params != StorageDtype::Fp32 && (model.has_images() || model.has_sequences()) {
        return not_covered("16-bit parameters of layers of images and sequences");
    }
    if strategy.params != StorageDtype::Fp32 && !matches!(model.loss, OutputLoss::CrossEntropy(_)) {
        return not_covered("16-bit parameters with other losses of layers in a list than cross_entropy");
    }
    if strategy.loss_chunks > 1 {
        return not_covered("loss_chunks with layers in a list");
    }
    let offloads = strategy.offload.activations != ActivationOffload::Nothing || strategy.offload.parameters;
    if offloads && model.has_sequences() {
        return not_covered("offloaded activations or parameters of layers of sequences");
    }
    if strategy.input_dtype != InputDtype::Fp32 && strategy.params != StorageDtype::Fp32 {
        return not_covered("input_dtype with 16-bit parameters");
    }
    if matches!(config.train.optimizer, Optimizer::Muon(_)) {
        return not_covered("Muon with layers in a list");
    }
    if !strategy.keep.is_empty() {
        return not_covered("kept values of layers in a list (keep)");
    }
    let modules = model.modules();
    if modules.iter().any(|module| !module.layer.computes()) {
        return not_covered(
            "layers without an operation (dropout = 0.0), which segments of checkpoints count",
        );
    }
    match strategy.recompute {
        Recompute::None => {}
        // PyTorch refuses it, if what is kept is overwritten.
        Recompute::Save(_) if model.has_activation_in_place() => {
            return not_covered("activations in place with kept results (recompute.save)");
        }
        _ if modules.iter().any(|module| starts_in_place(module.layer)) => {
            return not_covered("modules that begin with an activation in place, with checkpoints");
        }
        _ => {}
    }
    if overwrites_a_view(&modules) {
        return not_covered("activations in place directly after flatten or to_sequence");
    }
    let last = modules.last().map(|module| module.layer);
    let reads_repeated = matches!(last, Some(Layer::Activation(_) | Layer::Linear(_) | Layer::Dropout(_)));
    if model.loss == OutputLoss::Sum && !reads_repeated {
        return not_covered(
            "the loss \"sum\" unless a linear layer, an activation or dropout is last: its gradient repeats one number",
        );
    }
    if masks_targets(config) {
        return not_covered("incomplete batches of layers in a list (last_batch = \"keep\")");
    }
    Ok(())
}

/// Whether a layer overwrites its input.
fn starts_in_place(layer: &Layer) -> bool {
    match layer {
        Layer::Activation(ActivationLayer { inplace, .. }) => *inplace,
        Layer::Block(_) => layer.inner()[0].first().is_some_and(|first| starts_in_place(first.layer)),
        _ => false,
    }
}

fn ends_with_a_view(layer: &Layer) -> bool {
    match layer {
        Layer::Flatten | Layer::ToSequence => true,
        Layer::Block(_) => layer.inner()[0].last().is_some_and(|last| ends_with_a_view(last.layer)),
        _ => false,
    }
}

fn overwrites_a_view(modules: &[Module]) -> bool {
    let pair = |pair: &[Module]| ends_with_a_view(pair[0].layer) && starts_in_place(pair[1].layer);
    let within = |module: &Module| module.layer.inner().iter().any(|inner| overwrites_a_view(inner));
    modules.windows(2).any(pair) || modules.iter().any(within)
}
