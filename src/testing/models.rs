//! The models that tests combine with the strategy keys, and random models.

use proptest::prelude::{BoxedStrategy, Strategy as _};

use spec::{Data, Dropout, Model, ModelFamily, Random, RunConfig};

use crate::keys::UNSAID;
use crate::{sequential, transformers};

/// Models in experiment syntax: that of the run, and one of each other kind and of each Hugging Face family.
pub const MODELS: &[&str] = &[
    UNSAID,
    hugging_face(ModelFamily::Gpt2),
    hugging_face(ModelFamily::Llama),
    hugging_face(ModelFamily::Mistral),
    hugging_face(ModelFamily::Qwen2),
    hugging_face(ModelFamily::Qwen3),
    hugging_face(ModelFamily::Gemma),
    hugging_face(ModelFamily::Gemma2),
    hugging_face(ModelFamily::Gemma3),
    hugging_face(ModelFamily::Phi3),
    hugging_face(ModelFamily::Starcoder2),
    hugging_face(ModelFamily::GptNeo),
    hugging_face(ModelFamily::Smollm3),
    hugging_face(ModelFamily::Granite),
    hugging_face(ModelFamily::Olmo2),
    hugging_face(ModelFamily::Olmo3),
    hugging_face(ModelFamily::GptNeox),
    hugging_face(ModelFamily::Phi),
    hugging_face(ModelFamily::Falcon),
    sequential::ENCODER,
    sequential::CLASSIFIER,
    sequential::REGRESSION,
    sequential::CONVOLUTIONS,
    sequential::BATCH_NORM,
    sequential::SUM,
    sequential::SMOOTHED,
    sequential::VISION,
    hugging_face(ModelFamily::Mixtral),
    hugging_face(ModelFamily::Qwen3Moe),
    hugging_face(ModelFamily::Olmoe),
];

/// The numbers of models of layers in a list and of models with experts, which come last.
const LIST_COUNT: usize = 8;
const EXPERTS: usize = 3;

/// Those without experts, which a GPU supports, in the same order.
pub const ON_GPU: &[&str] = MODELS.split_at(MODELS.len() - EXPERTS).0;

/// The transformers without experts, whose feed-forward layers can have adapters, in the same order.
pub const DENSE: &[&str] = ON_GPU.split_at(ON_GPU.len() - LIST_COUNT).0;

/// The layers in a list whose inputs are numbers. Those of the first list are ids.
pub const LISTS_OF_NUMBERS: &[&str] = ON_GPU.split_at(DENSE.len() + 1).1;

/// The fifth of the lists.
const BATCH_NORM_AT: usize = DENSE.len() + 4;

/// All whose results do not depend on how a batch is divided.
pub const WITHOUT_BATCH_NORM: &[&str] = &{
    let mut all = [UNSAID; MODELS.len() - 1];
    let mut index = 0;
    while index < all.len() {
        all[index] = MODELS[if index < BATCH_NORM_AT { index } else { index + 1 }];
        index += 1;
    }
    all
};

/// The transformers.
pub const TRANSFORMERS: &[&str] = &{
    let mut all = [UNSAID; MODELS.len() - LIST_COUNT];
    let mut index = 0;
    while index < all.len() {
        all[index] = if index < DENSE.len() { MODELS[index] } else { MODELS[index + LIST_COUNT] };
        index += 1;
    }
    all
};

/// A committed configuration.
macro_rules! config {
    ($folder:literal) => {
        concat!(
            "{ hf = { context = 16, dropout = false, config = '",
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/reference/vectors/hugging_face/",
            $folder,
            "/config.json' } }"
        )
    };
}

/// A model of a family with two layers. A new family does not compile without an arm here.
const fn hugging_face(family: ModelFamily) -> &'static str {
    match family {
        ModelFamily::Gpt2 => config!("gpt2"),
        ModelFamily::Llama => config!("llama"),
        ModelFamily::Mistral => config!("mistral"),
        ModelFamily::Qwen2 => config!("qwen2"),
        ModelFamily::Qwen3 => config!("qwen3"),
        ModelFamily::Gemma => config!("gemma"),
        ModelFamily::Gemma2 => config!("gemma2"),
        ModelFamily::Gemma3 => config!("gemma3_text"),
        ModelFamily::Phi3 => config!("phi3"),
        ModelFamily::Starcoder2 => config!("starcoder2"),
        ModelFamily::GptNeo => config!("gpt_neo"),
        ModelFamily::Smollm3 => config!("smollm3"),
        ModelFamily::Granite => config!("granite"),
        ModelFamily::Olmo2 => config!("olmo2"),
        ModelFamily::Olmo3 => config!("olmo3"),
        ModelFamily::GptNeox => config!("gpt_neox"),
        ModelFamily::Phi => config!("phi"),
        ModelFamily::Falcon => config!("falcon"),
        ModelFamily::Mixtral => config!("mixtral"),
        ModelFamily::Qwen3Moe => config!("qwen3_moe"),
        ModelFamily::Olmoe => config!("olmoe"),
    }
}

/// Any model of the same kind. A new kind of model does not compile without an arm here; a test then requires its line
/// in `MODELS`.
pub(crate) fn any_alike(model: &Model) -> BoxedStrategy<Model> {
    match model {
        Model::Transformer(_) => transformers::any_transformer().prop_map(Model::Transformer).boxed(),
        Model::Sequential(_) => sequential::any_sequential().prop_map(Model::Sequential).boxed(),
    }
}

/// A run with another model. The layers that its strategy names are renamed to those of the model.
pub(crate) fn with_model(mut config: RunConfig, model: Model) -> RunConfig {
    if let (Model::Transformer(model), Some(lora)) = (&model, &mut config.strategy.lora) {
        transformers::adapt(lora, model);
    }
    with_data(RunConfig { model, ..config })
}

/// The number of samples of data that is not tokens.
const SAMPLES: usize = 160;

/// A run with data that its model can read.
pub(crate) fn with_data(config: RunConfig) -> RunConfig {
    match &config.model {
        Model::Transformer(_) => config,
        Model::Sequential(_) => {
            let data = Data::Random(Random { samples: Some(50), seed: 1 });
            RunConfig { data, data_len: Some(SAMPLES), lengths: None, ..config }
        }
    }
}

/// The sizes of `model` with the structure of `other`: the result and `other` differ only in sizes.
pub fn as_deep(model: &Model, other: &Model) -> Model {
    match (model, other) {
        (Model::Transformer(own), Model::Transformer(other)) => {
            Model::Transformer(transformers::alike(own, other))
        }
        (Model::Sequential(own), Model::Sequential(other)) => {
            Model::Sequential(sequential::alike(own, other))
        }
        (_, other) => other.clone(),
    }
}

/// Sets each dropout probability of a model.
pub fn set_dropout(model: &mut Model, rate: f64) {
    match model {
        Model::Transformer(model) => {
            model.dropout = Dropout { embedding: rate, attention: rate, residual: rate };
        }
        Model::Sequential(model) => sequential::set_dropout(model, rate),
    }
}
