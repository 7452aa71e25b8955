//! The configurations of GPT-2 and GPT-Neo.

use serde_json::Value;

use super::fields::ConfigFields;
use super::{Hf, activation, llama, windows};
use crate::schema::model::{Dropout, MlpActivation, Transformer};

/// Fields of other heads.
const OF_OTHER_HEADS: &[&str] = &[
    "summary_activation",
    "summary_first_dropout",
    "summary_hidden_size",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
];

pub(super) fn gpt2(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let either = |own, shared| either(fields, own, shared);
    let layers = fields.layers(either("n_layer", "num_hidden_layers"), 12);
    let d_model = fields.size(either("n_embd", "hidden_size"), 768);
    let heads = fields.size(either("n_head", "num_attention_heads"), 12);
    let positions = either("n_positions", "max_position_embeddings");
    let context = context(fields, hf, positions, 1024);
    fields.ignore(&[
        "n_layer",
        "num_hidden_layers",
        "n_embd",
        "hidden_size",
        "n_head",
        "num_attention_heads",
    ]);
    // Older versions' names.
    fields.ignore(&[
        "n_positions",
        "max_position_embeddings",
        "n_ctx",
        "n_special",
        "predict_special_tokens",
    ]);
    fields.require("scale_attn_by_inverse_layer_idx", &Value::from(false));
    // It only changes the order of operations.
    fields.flag("reorder_and_upcast_attn");
    let [embedding, attention, residual] =
        ["embd_pdrop", "attn_pdrop", "resid_pdrop"].map(|field| fields.dropout_rate(field, 0.1, hf));
    let model = Transformer::new(layers, d_model, heads, context);
    Transformer {
        d_ff: fields.optional_size("n_inner").unwrap_or(model.d_ff),
        attention_scale: (fields.flag("scale_attn_weights") == Some(false)).then_some(1.0),
        dropout: Dropout { embedding, attention, residual },
        ..shared(fields, model)
    }
}

/// GPT-Neo: windows in every second block, and scores without a factor.
pub(super) fn gpt_neo(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let either = |own, shared| either(fields, own, shared);
    let layers = fields.layers(either("num_layers", "num_hidden_layers"), 24);
    let d_model = fields.size("hidden_size", 2048);
    let heads = fields.size(either("num_heads", "num_attention_heads"), 16);
    let context = context(fields, hf, "max_position_embeddings", 2048);
    fields.ignore(&["num_layers", "num_hidden_layers", "num_heads", "num_attention_heads"]);
    let model = Transformer::new(layers, d_model, heads, context);
    let types = attention_types(fields, layers);
    let slides: Vec<bool> = types.iter().map(|word| word == "local").collect();
    let window = fields.size("window_size", 256);
    let windows = windows::regular(fields, "attention_types", Some(window), &slides);
    let [embedding, attention, residual] = ["embed_dropout", "attention_dropout", "resid_dropout"]
        .map(|field| fields.dropout_rate(field, 0.0, hf));
    Transformer {
        d_ff: fields.optional_size("intermediate_size").unwrap_or(model.d_ff),
        attention_scale: Some(1.0),
        qkv_bias: false,
        dropout: Dropout { embedding, attention, residual },
        ..llama::with_windows(shared(fields, model), windows)
    }
}

/// The fields that both name alike.
fn shared(fields: &ConfigFields, model: Transformer) -> Transformer {
    fields.ignore(OF_OTHER_HEADS);
    Transformer {
        vocabulary: fields.size("vocab_size", 50_257),
        activation: activation::read(fields, "activation_function", "gelu_new", MlpActivation::Plain),
        norm_epsilon: fields.number("layer_norm_epsilon").unwrap_or(model.norm_epsilon),
        tied: fields.flag("tie_word_embeddings").unwrap_or(true),
        ..model
    }
}

/// The one of two names of a field that is written. The library reads both.
fn either(fields: &ConfigFields, own: &'static str, shared: &'static str) -> &'static str {
    if fields.has(shared) && !fields.has(own) && !fields.is_null(own) { shared } else { own }
}

/// The context; an error if it exceeds the position table.
fn context(fields: &ConfigFields, hf: &Hf, field: &str, default: usize) -> usize {
    let positions = fields.size(field, default);
    let context = hf.context.unwrap_or(positions);
    if context > positions {
        let message = format!("context = {context} exceeds the position table, `{field}` = {positions}");
        fields.error(field, message, format!("use a context of at most {positions}"));
    }
    context
}

/// `"global"` or `"local"` for each block: groups with a count, or the list that they stand for.
fn attention_types(fields: &ConfigFields, layers: usize) -> Vec<String> {
    let word = |value: &Value| value.as_str().map(str::to_owned);
    let words = |value: &Value| value.as_array()?.iter().map(word).collect::<Option<Vec<String>>>();
    let group = |value: &Value| {
        let [group, count] = value.as_array()?.as_slice() else { return None };
        let count = usize::try_from(count.as_u64()?).ok().filter(|count| *count <= layers)?;
        Some(std::iter::repeat_n(words(group)?, count).flatten().collect())
    };
    let groups = |value: &Value| value.as_array()?.iter().map(group).collect::<Option<Vec<Vec<String>>>>();
    let expected = "a list of groups such as [[\"global\", \"local\"], 12]";
    let grouped = fields.value("attention_types", expected, groups).map(|groups| groups.concat());
    let listed = fields.words("attention_layers");
    if let (Some(grouped), Some(listed)) = (&grouped, &listed)
        && grouped != listed
    {
        fields.unsupported("attention_layers", "the blocks of `attention_types`");
    }
    let types = grouped
        .or(listed)
        .unwrap_or_else(|| ["global", "local"].into_iter().cycle().take(layers).map(str::to_owned).collect());
    let is_known = |word: &String| ["global", "local"].contains(&word.as_str());
    if types.len() != layers || !types.iter().all(is_known) {
        let expected = format!("\"global\" and \"local\" attention, {layers} blocks in all");
        fields.unsupported(
            if fields.has("attention_types") { "attention_types" } else { "attention_layers" },
            &expected,
        );
    }
    types
}
