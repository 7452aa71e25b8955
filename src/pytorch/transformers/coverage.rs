//! The runs whose model has a class in the library that is predicted.

use crate::coverage::{NotCovered, packs_documents};
use spec::{Attention, KeywordEnum, ModelFamily, Recompute, RunConfig, TRANSFORMERS_VERSION, Transformer};

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
        ModelFamily::Llama | ModelFamily::Mistral | ModelFamily::Qwen2 | ModelFamily::Qwen3
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
    if packs_documents(config) {
        return not_covered("packed documents".to_owned());
    }
    if config.lengths.is_some() {
        return not_covered("lengths that vary (pad_to = \"batch\")".to_owned());
    }
    Ok(())
}

fn has_windows(model: &Transformer) -> bool {
    (0..model.layers).any(|block| model.window_of(block).is_some_and(|window| window < model.context))
}
