//! What the prediction covers: a run that cannot be spelled as the predicted program has a reason instead of a figure.

mod distributed;
mod list;
mod optimizer;
mod sharded;

use base::units::Bytes;
use spec::{
    ActivationOffload, Attention, BlockPart, CollectedOutput, DataResidence, Evaluation, EvaluationPass,
    Init, InputDtype, KeywordEnum, KeywordSet, Leak, Optimizer, OptimizerState, OutputLoss, PartRole,
    Precision, Recompute, Release, RunConfig, Shard, StorageDtype, SubLayers, TorchCheckpoint, TorchKernels,
    TorchOptions, TorchProgram, Transformer, Update,
};

use crate::card::Card;
use crate::module::{attending, dtype_of};
use crate::tensor::DType;
use crate::torch::Torch;
use crate::{trainer, transformers};
use graph::Graph;
use ops::{AttentionConfig, Op, OpKind, TensorType};

/// The most forward passes to simulate, if they differ.
const MOST_PASSES: usize = 2000;

/// Why PyTorch's memory is not predicted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotCovered(pub String);

type Covered = Result<(), NotCovered>;

fn not_covered(reason: &str) -> Covered {
    Err(NotCovered(reason.to_owned()))
}

/// Checks that the prediction covers a run on this card.
pub(crate) fn check(config: &RunConfig, card: &Card, options: TorchOptions) -> Covered {
    distributed::check(config, options)?;
    model(config, options.program)?;
    dtypes(config, card, options)?;
    optimizer::check(config, card, options)?;
    optimizer::torchao(config, options)?;
    let strategy = &config.strategy;
    match strategy.recompute {
        Recompute::None | Recompute::Block | Recompute::Every(_) | Recompute::Segments(_) => {}
        Recompute::Parts(parts) if parts.contains(BlockPart::Norm) => {
            return not_covered("checkpointed norms (recompute = [\"norm\"])");
        }
        Recompute::Parts(_) => {}
        Recompute::Save(kinds) => selective(config, kinds, options)?,
        Recompute::Budget(_) => return not_covered("recompute.budget"),
    }
    if options.attention_mask && !options.program.is_of_library() {
        return not_covered(
            "torch_attention_mask = true without the library's model: use torch_program = \"transformers\" or \"trainer\"",
        );
    }
    if options.kernels == TorchKernels::Liger && !options.program.is_of_library() {
        return not_covered(
            "torch_kernels = \"liger\" without the library's model: use torch_program = \"transformers\" or \"trainer\"",
        );
    }
    if options.program.is_of_library() {
        transformers::check(config, options)?;
    }
    if options.program == TorchProgram::Trainer {
        trainer::check(config, options)?;
    }
    let updates_in_backward = config.trains() && strategy.update == Update::InBackward;
    let checkpoints_loss = strategy.loss_chunks > 1 && options.program == TorchProgram::Modules;
    if options.checkpoint == TorchCheckpoint::Reentrant && checkpoints_loss && updates_in_backward {
        return not_covered(
            "updates in backward with reentrant checkpoints of the loss: each slice updates the head",
        );
    }
    if config.lengths.is_some() && !options.program.is_of_library() {
        let model = config.model.transformer();
        let windows = |model: &Transformer| (0..model.layers).any(|block| model.window_of(block).is_some());
        if strategy.attention == Attention::Materialized || model.is_some_and(windows) {
            return not_covered("masks of attention with lengths that vary (pad_to = \"batch\")");
        }
    }
    let passes = match options.program {
        TorchProgram::Trainer => trainer::simulated_passes(config),
        TorchProgram::Modules | TorchProgram::Transformers => simulated_passes(config),
    };
    if passes > MOST_PASSES {
        return Err(NotCovered(format!(
            "more than {MOST_PASSES} forward passes that differ (here {passes}: pad_to = \"batch\", leak, collect, Trainer's evaluations)"
        )));
    }
    if strategy.lora.is_some() && options.program == TorchProgram::Modules {
        return not_covered("adapters (lora): use torch_program = \"transformers\" or \"trainer\"");
    }
    if strategy.offload.parameters && config.trains() {
        return not_covered(
            "offloaded parameters in training: a module that leaves the card after its forward pass takes weights along \
             that backward needs",
        );
    }
    if strategy.offload.parameters && options.program.is_of_library() {
        return not_covered("offloaded parameters of the library's models: use torch_program = \"modules\"");
    }
    offloaded_activations(config, options)?;
    if !strategy.place.is_empty() {
        return not_covered("layers on the host (place)");
    }
    if strategy.graph {
        return not_covered("CUDA graphs (graph = true)");
    }
    if strategy.release != Release::Eager {
        return not_covered("values released late (release)");
    }
    if strategy.keep.iter().any(|value| !is_logits(value)) {
        return not_covered("references to other values than the logits (keep)");
    }
    if strategy.leak == Some(Leak::Graph) && strategy.recompute != Recompute::None {
        return not_covered("kept graphs with checkpointing (leak = \"graph\")");
    }
    if returns_logits(config) && strategy.loss_chunks > 1 {
        return not_covered("logits that are kept or collected, with loss_chunks");
    }
    if strategy.init == Init::Lazy {
        return not_covered("lazy initialisation");
    }
    if strategy.input_dtype == InputDtype::U8 {
        return not_covered("pixels that the device scales (input_dtype = \"u8\")");
    }
    if strategy.loader.source == DataResidence::Device {
        return not_covered("a data set on the device");
    }
    Ok(())
}

/// Whether several ranks train: `DistributedDataParallel` or `fully_shard` wraps the model.
pub(crate) fn is_distributed(config: &RunConfig) -> bool {
    config.ranks() > 1 && config.trains()
}

/// Whether `fully_shard` wraps the model.
pub(crate) fn is_fully_sharded(config: &RunConfig) -> bool {
    is_distributed(config) && config.strategy.parallel.shard == Shard::Parameters
}

/// Whether a loss is multiplied by a number before backward: by the share of a micro-batch in the batch of all ranks, times
/// their number, because the ranks average gradients. `config`: of all ranks.
pub(crate) fn scales_loss(config: &RunConfig) -> bool {
    let ranks = config.ranks();
    if sums_outputs(config) {
        // Each micro-batch adds its own.
        return ranks > 1;
    }
    let is_uneven = !config.train.batch_size.is_multiple_of(ranks);
    config.of_rank(0).micro_batches() > 1 || ranks > 1 && (is_uneven || masks_targets(config))
}

/// The model, if it is a transformer.
pub(crate) fn transformer(config: &RunConfig) -> Result<&Transformer, NotCovered> {
    config.model.transformer().ok_or_else(|| NotCovered("layers in a list (model.sequential)".to_owned()))
}

/// Checks the keys of the model whose operations have no recorded requests.
fn model(config: &RunConfig, program: TorchProgram) -> Covered {
    let model = match config.model.sequential() {
        Some(model) => return list::check(config, model, program),
        None => transformer(config)?,
    };
    let has_short_lengths = config.lengths.as_ref().is_some_and(|lengths| lengths.distinct().contains(&1));
    if model.context == 1 || has_short_lengths {
        return not_covered("samples of one token, whose transposed views are contiguous");
    }
    if model.experts.is_some() {
        return not_covered("mixtures of experts, whose memory depends on the routing");
    }
    if program.is_of_library() {
        return Ok(());
    }
    // Blocks of the script differ by their masks.
    let has_windows = model.window.is_some_and(|window| window < model.context);
    if model.window_attention_scale.is_some() && !has_windows {
        return not_covered("window_attention_scale with windows of the whole context");
    }
    if model.sub_layers != SubLayers::Sequential {
        return not_covered("attention beside the feed-forward layer (sub_layers)");
    }
    if model.rotated_channels() != model.head_dim {
        return not_covered("rotation of a part of the channels (rotary.channels)");
    }
    if model.head_bias {
        return not_covered("a bias of the head (head_bias)");
    }
    Ok(())
}

/// Checks that `save_on_cpu` can offload the activations.
fn offloaded_activations(config: &RunConfig, options: TorchOptions) -> Covered {
    let strategy = &config.strategy;
    match strategy.offload.activations {
        ActivationOffload::Nothing => return Ok(()),
        ActivationOffload::From(Bytes(0)) => {}
        ActivationOffload::From(_) => {
            return not_covered(
                "offload.activations from a size on, which save_on_cpu lacks: use offload.activations = true",
            );
        }
    }
    if options.program.is_of_library() {
        return not_covered("offloaded activations of the library's models: use torch_program = \"modules\"");
    }
    let has_checkpoints = strategy.recompute != Recompute::None || strategy.loss_chunks > 1;
    if options.checkpoint == TorchCheckpoint::Reentrant && has_checkpoints {
        return not_covered("offloaded activations with reentrant checkpoints");
    }
    if strategy.evaluation_pass == EvaluationPass::Grad && strategy.recompute == Recompute::Block {
        return not_covered("offloaded activations of checkpointed blocks with evaluation_pass = \"grad\"");
    }
    Ok(())
}

/// Checks that PyTorch can keep the results of these operations in checkpointed blocks.
fn selective(config: &RunConfig, kinds: KeywordSet<OpKind>, options: TorchOptions) -> Covered {
    if options.checkpoint == TorchCheckpoint::Reentrant {
        return not_covered(
            "selective checkpointing (recompute.save) with reentrant checkpoints, which have none",
        );
    }
    if kinds.contains(OpKind::Norm) {
        return not_covered("kept results of norms (recompute.save)");
    }
    if kinds.contains(OpKind::Attention) && config.strategy.attention == Attention::Materialized {
        return not_covered("kept results of attention that is written out (recompute.save)");
    }
    Ok(())
}

/// Whether the loss is a sum that the script's own model divides by the number of targets that are not masked: the sum over
/// slices has no mean of its own.
pub(crate) fn counts_targets(config: &RunConfig, options: TorchOptions) -> bool {
    masks_targets(config) && config.strategy.loss_chunks > 1 && !options.program.is_of_library()
}

/// Batches of an evaluation of the script: two stand for all that repeat.
pub(crate) fn evaluated_batches(config: &RunConfig, evaluation: &Evaluation) -> usize {
    match config.steps_of_varying_lengths().is_some() || evaluation.collect.is_some() {
        true => evaluation.batches,
        false => evaluation.batches.min(2),
    }
}

/// Forward passes of the steps and evaluations that are simulated because they differ; 0 if a few stand for all.
fn simulated_passes(config: &RunConfig) -> usize {
    let (steps, micro_batches) = (simulated_steps(config), config.micro_batches());
    let Some(evaluation) = config.evaluation.as_ref().filter(|_| config.trains()) else {
        return steps.unwrap_or(0).saturating_mul(micro_batches);
    };
    let evaluations = steps.map_or(2, |steps| steps.div_ceil(evaluation.every.max(1)));
    let differ = steps.is_some() || evaluation.collect.is_some();
    let of_evaluation = if config.evaluation_batch().is_some() { 1 } else { micro_batches };
    let evaluated =
        evaluations.saturating_mul(evaluated_batches(config, evaluation)).saturating_mul(of_evaluation);
    let trained = steps.unwrap_or(0).saturating_mul(micro_batches);
    if differ { trained.saturating_add(evaluated) } else { 0 }
}

/// Whether the whole forward pass is under `save_on_cpu`. With checkpointed blocks, their calls are.
pub(crate) fn saves_forward_on_cpu(config: &RunConfig) -> bool {
    let strategy = &config.strategy;
    strategy.offload.activations != ActivationOffload::Nothing && strategy.recompute != Recompute::Block
}

/// Whether samples have several documents: attention then has a mask for each sample.
pub(crate) fn packs_documents(config: &RunConfig) -> bool {
    config.sample().part(PartRole::Position).is_some()
}

/// Whether a batch has a part beside tokens and targets: that of packed documents, or an attention mask.
pub(crate) fn has_third(torch: &Torch, config: &RunConfig) -> bool {
    packs_documents(config) || torch.options.attention_mask
}

/// The steps of a run whose steps differ: lengths vary, or each step leaks. `None`: the first steps stand for all.
pub(crate) fn simulated_steps(config: &RunConfig) -> Option<usize> {
    let leaks = config.trains() && matches!(config.strategy.leak, Some(Leak::Logits | Leak::Graph));
    config.steps_of_varying_lengths().or(leaks.then(|| config.steps()))
}

/// Whether the model returns its logits.
pub(crate) fn returns_logits(config: &RunConfig) -> bool {
    collects_logits(config) || holds_logits(config)
}

/// Whether a variable of the training step holds the logits until the next micro-batch: a forgotten reference, or a leak.
pub(crate) fn holds_logits(config: &RunConfig) -> bool {
    let strategy = &config.strategy;
    config.trains()
        && (strategy.leak == Some(Leak::Logits) || strategy.keep.iter().any(|value| is_logits(value)))
}

fn is_logits(value: &str) -> bool {
    value == "head.logits"
}

/// Whether evaluations collect logits.
pub(crate) fn collects_logits(config: &RunConfig) -> bool {
    config.trains() && config.collect().is_some_and(|collect| collect.what == CollectedOutput::Logits)
}

/// Whether the loss is the sum of the outputs, without targets.
pub(crate) fn sums_outputs(config: &RunConfig) -> bool {
    config.model.sequential().is_some_and(|model| model.loss == OutputLoss::Sum)
}

/// Whether the loss ignores some targets: padding, or what a data set lacks for its last batch.
pub(crate) fn masks_targets(config: &RunConfig) -> bool {
    config.sample().masks_targets()
}

/// Whether the optimizer updates fp32 copies of 16-bit parameters. Adapters are fp32 themselves.
pub(crate) fn has_master_weights(config: &RunConfig) -> bool {
    let strategy = &config.strategy;
    config.trains() && strategy.lora.is_none() && strategy.has_master_weights()
}

/// Whether gradients of 16-bit parameters are accumulated in fp32.
pub(crate) fn accumulates_in_fp32(config: &RunConfig) -> bool {
    has_master_weights(config) && config.strategy.gradient_dtype == StorageDtype::Fp32
}

fn dtypes(config: &RunConfig, card: &Card, options: TorchOptions) -> Covered {
    let strategy = &config.strategy;
    if card.capability < (8, 0) && strategy.precision == Precision::Bf16 {
        return not_covered("bf16 before compute capability 8.0");
    }
    if strategy.lora.is_some() {
        // Checked by `transformers::check`.
        return Ok(());
    }
    if strategy.params == StorageDtype::Fp32 {
        return match strategy.gradient_dtype {
            StorageDtype::Fp32 if strategy.residual == StorageDtype::Fp32 => Ok(()),
            _ => not_covered("16-bit gradients or residual stream beside fp32 parameters"),
        };
    }
    let has_masters = has_master_weights(config);
    if config.trains() && strategy.loss_scale.is_some() && !has_masters {
        return not_covered("a loss scale with fp16 parameters: GradScaler refuses their gradients");
    }
    // Layers in a list have no residual stream.
    if strategy.residual != strategy.params && config.model.transformer().is_some() {
        let params = strategy.params.keyword();
        return Err(NotCovered(format!(
            "a residual stream of another dtype than the parameters: use residual = \"{params}\""
        )));
    }
    if config.trains() && strategy.gradient_dtype != strategy.params && !has_masters {
        return not_covered("gradients of another dtype than the parameters, without master weights");
    }
    if strategy.precision.dtype() != strategy.params.dtype() {
        return not_covered("matmuls of another dtype than 16-bit parameters");
    }
    let has_states = has_states(config) && !config.has_bitsandbytes_optimizer(options);
    match strategy.optimizer_state {
        OptimizerState::Fp32 if config.trains() && has_states && !has_masters => {
            not_covered("optimizer_state = \"fp32\" with 16-bit parameters: torch.optim uses their dtype")
        }
        OptimizerState::Bf16 if config.trains() && has_states && has_masters => {
            not_covered("optimizer_state = \"bf16\" with master weights: torch.optim uses their dtype")
        }
        _ => Ok(()),
    }
}

/// The dtype of matmuls in 16 bits beside fp32 parameters.
fn half_precision(config: &RunConfig) -> Option<DType> {
    let strategy = &config.strategy;
    match strategy.params {
        StorageDtype::Fp32 => Some(dtype_of(strategy.precision.dtype())).filter(|dtype| dtype.is_half()),
        StorageDtype::Bf16 | StorageDtype::Fp16 => None,
    }
}

/// The dtype of autocast, if the run has it.
pub(crate) fn autocast(config: &RunConfig) -> Option<DType> {
    half_precision(config).filter(|_| !is_fully_sharded(config))
}

/// The dtype of gathered parameters, if it is not that of their shards (`MixedPrecisionPolicy`).
pub(crate) fn gathered_dtype(config: &RunConfig) -> Option<DType> {
    half_precision(config).filter(|_| is_fully_sharded(config))
}

/// Whether the optimizer has states.
pub(crate) fn has_states(config: &RunConfig) -> bool {
    !matches!(&config.train.optimizer, Optimizer::Sgd(sgd) if sgd.momentum == 0.0)
}

/// Checks the operations of a run's graph.
pub(crate) fn check_operations(config: &RunConfig, graph: &Graph) -> Result<(), NotCovered> {
    for node in &graph.nodes {
        if let Some(attending) = attending(&node.op) {
            check_attention(config, attending, &graph.values[node.inputs[0]].ty)?;
            continue;
        }
        if let Op::Linear(_) = node.op
            && graph.values[node.inputs[1]].ty.shape.dims().contains(&1)
        {
            return Err(NotCovered("linear layers of one feature".to_owned()));
        }
        match &node.op {
            Op::Activate(_)
            | Op::Embedding(_)
            | Op::LayerNorm(_)
            | Op::RmsNorm(_)
            | Op::Linear(_)
            | Op::QkNorm(_)
            | Op::Rotary(_)
            | Op::Gated(_)
            | Op::Add(_)
            | Op::Scale(_)
            | Op::Dropout(_)
            | Op::CrossEntropy(_) => {}
            op => return Err(NotCovered(format!("the operation `{}`", op.name()))),
        }
    }
    Ok(())
}

/// Checks an attention layer.
fn check_attention(config: &RunConfig, attending: &AttentionConfig, qkv: &TensorType) -> Covered {
    let heads = attending.heads("attention", qkv).map_err(|error| NotCovered(error.to_string()))?;
    let is_fused = config.strategy.attention == Attention::Fused;
    if is_fused && attending.cap.is_some() {
        return not_covered("soft-capped scores in fused attention, which PyTorch's cannot compute");
    }
    if attending.documents && attending.window.is_some() {
        return not_covered("packed documents with sliding windows");
    }
    if is_fused && (!heads.head.is_multiple_of(8) || heads.head > 256) {
        return not_covered("fused attention of heads that are not 8, 16, .. 256 channels wide");
    }
    Ok(())
}
