//! The runs whose model has a class in the library that is predicted.

use super::layers::peft_module;
use super::{adapter_dtype, compute_dtype, dtype};
use crate::coverage::{NotCovered, has_states, packs_documents};
use crate::module::dtype_of;
use crate::tensor::DType;
use ops::Activation;
use spec::{
    Attention, KeywordEnum, Leak, Lora, LoraBase, MlpActivation, ModelFamily, OptimizerState, Recompute,
    RunConfig, StorageDtype, TorchKernels, TorchOptions, TorchProgram, Transformer, TransformersVersion,
};

/// Checks that the prediction covers a run with the model of the library.
pub(crate) fn check(config: &RunConfig, options: TorchOptions) -> Result<(), NotCovered> {
    let program = options.program;
    let not_covered =
        |reason: String| Err(NotCovered(format!("{reason} (torch_program = \"{}\")", program.keyword())));
    let Some(model) = config.model.transformer() else {
        return not_covered("a model other than a transformer".to_owned());
    };
    let Some(library) = model.hf_configuration() else {
        return not_covered(format!(
            "a model that no class of transformers {} has",
            options.transformers.keyword()
        ));
    };
    if !matches!(
        library.family,
        ModelFamily::Gpt2
            | ModelFamily::Llama
            | ModelFamily::Mistral
            | ModelFamily::Qwen2
            | ModelFamily::Qwen3
            | ModelFamily::Smollm3
            | ModelFamily::Granite
            | ModelFamily::Gemma
            | ModelFamily::Gemma2
            | ModelFamily::Gemma3
            | ModelFamily::Olmo2
            | ModelFamily::Olmo3
            | ModelFamily::Phi3
            | ModelFamily::Starcoder2
            | ModelFamily::GptNeox
            | ModelFamily::Phi
            | ModelFamily::Falcon
    ) {
        return not_covered(format!("the library's class of the family `{}`", library.family.keyword()));
    }
    if library.family == ModelFamily::Gemma2 && config.strategy.attention == Attention::Fused {
        return not_covered(
            "Gemma 2 with attention = \"fused\": the library has its eager attention alone".to_owned(),
        );
    }
    if library.family == ModelFamily::Gemma3 && model.attention_softcap.is_some() {
        return not_covered("attention_softcap of Gemma 3, which the library's class ignores".to_owned());
    }
    let is_falcon = library.family == ModelFamily::Falcon;
    if is_falcon && (options.attention_mask || config.strategy.attention == Attention::Materialized) {
        return not_covered("Falcon's eager attention, and its attention masks with padding".to_owned());
    }
    if options.transformers == TransformersVersion::V4_57 {
        version_4(config, library.family).or_else(not_covered)?;
    }
    if !model.rotary.divisors.is_empty() {
        return not_covered("rotations that the library scales by values read back".to_owned());
    }
    let strategy = &config.strategy;
    match strategy.recompute {
        Recompute::None | Recompute::Block | Recompute::Every(_) => {}
        _ => {
            return not_covered(
                "recompute other than \"block\" and `every`: the library checkpoints whole layers".to_owned(),
            );
        }
    }
    if strategy.attention == Attention::Fused && (!model.head_dim.is_multiple_of(8) || model.head_dim > 256) {
        return not_covered("heads that are not 8, 16, .. 256 channels wide".to_owned());
    }
    if strategy.loss_chunks > 1 {
        if liger_mlp(library.family).is_none() {
            return not_covered(format!(
                "loss_chunks with the family `{}`, for which liger-kernel has no fused loss",
                library.family.keyword()
            ));
        }
        if strategy.leak == Some(Leak::Graph) {
            return not_covered("loss_chunks with leak = \"graph\"".to_owned());
        }
    }
    if options.kernels == TorchKernels::Liger {
        liger_layers(config, library.family, options).or_else(not_covered)?;
    }
    if let Some(lora) = &strategy.lora {
        adapters(config, options, library.family, lora).or_else(not_covered)?;
    }
    let is_whole = |layer: &str| {
        let blocks = layer.strip_prefix("blocks.").map(|block| block.parse::<usize>().is_ok());
        matches!(layer, "embedding" | "head") || blocks == Some(true)
    };
    if !strategy.freeze.iter().all(|layer| is_whole(layer)) {
        return not_covered("freeze of parts of blocks".to_owned());
    }
    if packs_documents(config) {
        packed(config, options, library.family).or_else(not_covered)?;
    }
    Ok(())
}

/// Checks that liger-kernel's function for the family computes the model.
fn liger_layers(config: &RunConfig, family: ModelFamily, options: TorchOptions) -> Result<(), String> {
    // Triton's most columns of a row.
    const MOST_COLUMNS: usize = 1 << 16;
    let not_covered = |reason: &str| Err(reason.to_owned());
    let Some(model) = config.model.transformer() else { return Ok(()) };
    if family == ModelFamily::Granite {
        return not_covered(
            "torch_kernels = \"liger\" with Granite, whose default is Liger's loss of whole logits",
        );
    }
    let Some(mlp) = liger_mlp(family) else {
        return Err(format!(
            "torch_kernels = \"liger\" with the family `{}`, for which liger-kernel has no layers",
            family.keyword()
        ));
    };
    if options.transformers == TransformersVersion::V4_57 {
        return not_covered(
            "torch_kernels = \"liger\" with transformers 4.57, which liger-kernel 0.8 refuses",
        );
    }
    let own = if mlp == "geglu" { Activation::GeluTanh } else { Activation::Silu };
    if model.activation != MlpActivation::Gate(own) {
        return not_covered(
            "torch_kernels = \"liger\" with another activation than that of liger-kernel's layer",
        );
    }
    if model.bias && options.program == TorchProgram::Transformers {
        return not_covered(
            "torch_kernels = \"liger\" with biases, which liger-kernel's feed-forward layer lacks",
        );
    }
    if model.d_model.max(model.d_ff) > MOST_COLUMNS {
        return Err(format!("torch_kernels = \"liger\" with rows of more than {MOST_COLUMNS} channels"));
    }
    Ok(())
}

/// Checks that 4.57 has what a run needs of its class.
fn version_4(config: &RunConfig, family: ModelFamily) -> Result<(), String> {
    let not_covered = |reason: &str| Err(reason.to_owned());
    if family == ModelFamily::Falcon {
        return not_covered("Falcon of transformers 4.57, whose masks are made by code of its own");
    }
    if config.strategy.loss_chunks > 1 {
        return not_covered("loss_chunks with transformers 4.57, which liger-kernel 0.8 refuses");
    }
    if matches!(config.strategy.recompute, Recompute::Every(every) if every > 1) {
        return not_covered("recompute = { every = n } with transformers 4.57, which checkpoints all layers");
    }
    Ok(())
}

/// Checks packed documents, of which the library finds the beginnings in `position_ids`.
fn packed(config: &RunConfig, options: TorchOptions, family: ModelFamily) -> Result<(), String> {
    let not_covered = |reason: &str| Err(reason.to_owned());
    if options.attention_mask {
        return not_covered("torch_attention_mask with packed documents, which then are not told apart");
    }
    if family == ModelFamily::Falcon {
        return not_covered("packed documents with Falcon");
    }
    if options.transformers == TransformersVersion::V4_57 {
        return not_covered("packed documents with transformers 4.57");
    }
    match config.all_packed {
        Some(true) => Ok(()),
        Some(false) => not_covered(
            "packed documents of which one alone fills a whole micro-batch: the library then makes no mask",
        ),
        None => not_covered("packed documents of unknown lengths"),
    }
}

/// The family of a model, if the library has it.
pub(crate) fn family(model: &Transformer) -> Option<ModelFamily> {
    model.hf_configuration().map(|configuration| configuration.family)
}

/// The keyword of the feed-forward layer in liger-kernel's function for a family, if that function has the fused loss.
pub(crate) fn liger_mlp(family: ModelFamily) -> Option<&'static str> {
    match family {
        ModelFamily::Gemma | ModelFamily::Gemma2 | ModelFamily::Gemma3 => Some("geglu"),
        ModelFamily::Llama
        | ModelFamily::Mistral
        | ModelFamily::Qwen2
        | ModelFamily::Qwen3
        | ModelFamily::Smollm3
        | ModelFamily::Olmo2
        | ModelFamily::Olmo3
        | ModelFamily::Phi3 => Some("swiglu"),
        _ => None,
    }
}

/// Checks that PEFT has the adapters of a run.
fn adapters(
    config: &RunConfig,
    options: TorchOptions,
    family: ModelFamily,
    lora: &Lora,
) -> Result<(), String> {
    let not_covered = |reason: &str| Err(reason.to_owned());
    let strategy = &config.strategy;
    if lora.base == LoraBase::Int8 {
        return not_covered("an 8-bit base (bitsandbytes' LLM.int8())");
    }
    if !lora.trained.is_empty() {
        check_saved_modules(config, lora)?;
    }
    if let Some(target) = lora.targets.iter().find(|target| peft_module(Some(family), target).is_none()) {
        return Err(format!("adapters of `{target}`, which is no module of the library's class"));
    }
    if lora.base == LoraBase::Nf4 && family == ModelFamily::Falcon {
        return not_covered(
            "a quantized base of Falcon: the library leaves its layers, `FalconLinear`, in full",
        );
    }
    if lora.base == LoraBase::Nf4 {
        return check_four_bit(config, options);
    }
    let is_of_one_dtype = lora.tables.is_none_or(|tables| dtype_of(tables.dtype()) == dtype(config))
        && (lora.tables.is_some() || dtype_of(strategy.params.dtype()) == dtype(config));
    if !is_of_one_dtype {
        return not_covered("a frozen base of several dtypes: set lora.base and lora.tables to the same one");
    }
    let precision = strategy.precision.keyword();
    if dtype(config).is_half() && dtype_of(strategy.precision.dtype()) != dtype(config) {
        return Err(format!("precision = \"{precision}\" with a 16-bit base of another dtype"));
    }
    if dtype(config) == DType::F32 && strategy.params != StorageDtype::Fp32 {
        return not_covered("an fp32 base with 16-bit params");
    }
    trained_dtypes(config, options)
}

/// Checks the layers that are trained beside adapters.
fn check_saved_modules(config: &RunConfig, lora: &Lora) -> Result<(), String> {
    let not_covered = |reason: &str| Err(reason.to_owned());
    let is_outside_blocks = |layer: &String| matches!(layer.as_str(), "embedding" | "head");
    if !lora.trained.iter().all(is_outside_blocks) {
        return not_covered(
            "lora.trained of other layers than the embedding and the head (PEFT: modules_to_save)",
        );
    }
    if config.model.transformer().is_some_and(|model| model.tied) {
        return not_covered("lora.trained of tied tables");
    }
    if dtype(config) != adapter_dtype(config) {
        return not_covered(
            "lora.trained of another dtype than the adapters: set lora.tables to that of the adapters",
        );
    }
    Ok(())
}

/// Checks the dtypes of a model with a base in four bits, its adapters and its other layers.
fn check_four_bit(config: &RunConfig, options: TorchOptions) -> Result<(), String> {
    let not_covered = |reason: &str| Err(reason.to_owned());
    let strategy = &config.strategy;
    if adapter_dtype(config) != DType::F32 {
        return not_covered("16-bit adapters of a quantized base: PEFT's are fp32");
    }
    if dtype(config) != DType::F32 && dtype(config) != compute_dtype(config) {
        return not_covered("lora.tables of another 16-bit dtype than precision");
    }
    if strategy.params != StorageDtype::Fp32 && dtype(config) != compute_dtype(config) {
        return not_covered(
            "lora.tables = \"fp32\" with 16-bit params: use params = \"fp32\" with 16-bit precision",
        );
    }
    trained_dtypes(config, options)
}

/// Checks the dtypes of adapters, of their gradients and states, and of the residual stream.
fn trained_dtypes(config: &RunConfig, options: TorchOptions) -> Result<(), String> {
    let not_covered = |reason: &str| Err(reason.to_owned());
    let strategy = &config.strategy;
    if strategy.residual != strategy.params {
        return not_covered("a residual stream of another dtype than the parameters");
    }
    if strategy.gradient_dtype != strategy.params {
        return not_covered("gradient_dtype: gradients have the dtype of the adapters");
    }
    if strategy.loss_scale.is_some() && adapter_dtype(config) == DType::F16 {
        return not_covered("a loss scale with fp16 adapters: GradScaler refuses their gradients");
    }
    let states = match strategy.optimizer_state {
        OptimizerState::Fp32 => DType::F32,
        OptimizerState::Bf16 => DType::BF16,
        OptimizerState::EightBit => return Ok(()),
    };
    let is_of_torch = !config.has_bitsandbytes_optimizer(options);
    if config.trains() && has_states(config) && is_of_torch && states != adapter_dtype(config) {
        return not_covered("optimizer states of another dtype than the adapters");
    }
    Ok(())
}
