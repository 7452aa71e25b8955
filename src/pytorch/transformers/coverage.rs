//! The runs whose model has a class in the library that is predicted.

use super::{adapter_dtype, dtype};
use crate::coverage::{NotCovered, packs_documents};
use crate::module::dtype_of;
use crate::tensor::DType;
use spec::{
    Attention, KeywordEnum, Lora, ModelFamily, Optimizer, OptimizerState, Recompute, RunConfig,
    TRANSFORMERS_VERSION, Transformer,
};

/// Checks that the prediction covers a run with the model of the library.
pub(crate) fn check(config: &RunConfig) -> Result<(), NotCovered> {
    let not_covered =
        |reason: String| Err(NotCovered(format!("{reason} (torch_program = \"transformers\")")));
    let Some(model) = config.model.transformer() else {
        return not_covered("models that are no transformers".to_owned());
    };
    let Some(library) = model.hf_configuration() else {
        return not_covered(format!("a model that is none of transformers {TRANSFORMERS_VERSION}"));
    };
    if !matches!(
        library.family,
        ModelFamily::Gpt2
            | ModelFamily::Llama
            | ModelFamily::Mistral
            | ModelFamily::Qwen2
            | ModelFamily::Qwen3
    ) {
        return not_covered(format!("the library's class of the family `{}`", library.family.keyword()));
    }
    if has_windows(model) {
        return not_covered("the library's masks of sliding windows".to_owned());
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
    if strategy.attention == Attention::Materialized {
        return not_covered("attention = \"materialized\" (the library's eager attention)".to_owned());
    }
    if strategy.loss_chunks > 1 {
        return not_covered("loss_chunks: the library computes all logits at once".to_owned());
    }
    if let Some(lora) = &strategy.lora {
        if library.family == ModelFamily::Gpt2 {
            return not_covered("adapters of GPT-2".to_owned());
        }
        adapters(config, lora)?;
    }
    let is_whole = |layer: &str| {
        let blocks = layer.strip_prefix("blocks.").map(|block| block.parse::<usize>().is_ok());
        matches!(layer, "embedding" | "head") || blocks == Some(true)
    };
    if !strategy.freeze.iter().all(|layer| is_whole(layer)) {
        return not_covered("freeze of parts of blocks".to_owned());
    }
    if packs_documents(config) {
        return not_covered("packed documents".to_owned());
    }
    if config.lengths.is_some() {
        return not_covered("lengths that vary (pad_to = \"batch\")".to_owned());
    }
    Ok(())
}

/// The family of a model, if the library has it.
pub(crate) fn family(model: &Transformer) -> Option<ModelFamily> {
    model.hf_configuration().map(|configuration| configuration.family)
}

/// Checks that PEFT has the adapters of a run.
fn adapters(config: &RunConfig, lora: &Lora) -> Result<(), NotCovered> {
    let not_covered = |reason: &str| Err(NotCovered(reason.to_owned()));
    let strategy = &config.strategy;
    if lora.base.is_quantized() {
        return not_covered("a quantized base (bitsandbytes)");
    }
    if !lora.trained.is_empty() {
        return not_covered("layers trained beside adapters (lora.trained; PEFT: modules_to_save)");
    }
    if lora.targets.iter().any(|target| peft_module(target).is_none()) {
        return not_covered(
            "adapters of stacked layers, which the library's class has apart: use \"all-linear\" or q_proj",
        );
    }
    let is_of_one_dtype = lora.tables.is_none_or(|tables| dtype_of(tables.dtype()) == dtype(config))
        && (lora.tables.is_some() || dtype_of(strategy.params.dtype()) == dtype(config));
    if !is_of_one_dtype {
        return not_covered("a frozen base of several dtypes: set lora.base and lora.tables to the same one");
    }
    if dtype(config).is_half() && dtype_of(strategy.precision.dtype()) != dtype(config) {
        return not_covered("matmuls of another dtype than the 16-bit base of adapters");
    }
    if strategy.residual != strategy.params {
        return not_covered("a residual stream of another dtype than the parameters");
    }
    let states = match strategy.optimizer_state {
        OptimizerState::Fp32 => DType::F32,
        OptimizerState::Bf16 => DType::BF16,
        OptimizerState::EightBit => return not_covered("8-bit optimizer states"),
    };
    let has_states = !matches!(&config.train.optimizer, Optimizer::Sgd(sgd) if sgd.momentum == 0.0);
    if config.trains() && has_states && states != adapter_dtype(config) {
        return not_covered("optimizer states of another dtype than the adapters");
    }
    Ok(())
}

/// The module in the library's classes that a target of adapters names.
pub(crate) fn peft_module(target: &str) -> Option<&'static str> {
    match target {
        "attention.q" => Some("q_proj"),
        "attention.k" => Some("k_proj"),
        "attention.v" => Some("v_proj"),
        "attention.out" => Some("o_proj"),
        "mlp.gate" => Some("gate_proj"),
        "mlp.up" => Some("up_proj"),
        "mlp.out" => Some("down_proj"),
        _ => None,
    }
}

fn has_windows(model: &Transformer) -> bool {
    (0..model.layers).any(|block| model.window_of(block).is_some_and(|window| window < model.context))
}
