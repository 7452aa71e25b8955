//! The configurations of Gemma 1, 2 and 3.

use serde_json::Value;

use super::fields::ConfigFields;
use super::{Hf, activation, llama, windows};
use crate::reader::parsers::UsizeRange;
use crate::schema::model::{MlpActivation, Norm, NormPlacement, Transformer};

const GEMMA: llama::FamilyDefaults = llama::FamilyDefaults {
    vocabulary: 256_000,
    d_model: 3072,
    d_ff: 24_576,
    layers: 28,
    heads: 16,
    kv_heads: Some(16),
    head_dim: Some(256),
    positions: 8192,
    base: 10_000.0,
    kind: None,
    partial: None,
};

const GEMMA2: llama::FamilyDefaults =
    llama::FamilyDefaults { d_model: 2304, d_ff: 9216, layers: 26, heads: 8, kv_heads: Some(4), ..GEMMA };

const GEMMA3: llama::FamilyDefaults = llama::FamilyDefaults {
    vocabulary: 262_208,
    positions: 131_072,
    base: 1_000_000.0,
    kind: Some("full_attention"),
    ..GEMMA2
};

pub(super) fn gemma(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &GEMMA);
    let gate = |function| MlpActivation::Gate(function);
    // The library takes "gelu" for the tanh approximation, which published files mean by it.
    let [older, newer] = ["hidden_act", "hidden_activation"].map(|field| {
        match activation::read(fields, field, "gelu_pytorch_tanh", gate) {
            MlpActivation::Gate(ops::Activation::Gelu) => gate(ops::Activation::GeluTanh),
            other => other,
        }
    });
    let has_both = fields.has("hidden_act") && fields.has("hidden_activation");
    if has_both && older != newer {
        // Version 4 of the library uses the second, version 5 the first.
        fields.unsupported("hidden_activation", "the function of `hidden_act`");
    }
    Transformer { activation: if fields.has("hidden_activation") { newer } else { older }, ..model }
}

pub(super) fn gemma2(fields: &ConfigFields, hf: &Hf) -> Transformer {
    // The library ignores it in favour of `sliding_window`.
    fields.ignore(&["sliding_window_size"]);
    sandwich(fields, hf, &GEMMA2, 2, [50.0, 30.0].map(Some))
}

/// The text model of Gemma 3.
pub(super) fn gemma3(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let every = fields.integer("sliding_window_pattern", UsizeRange(1..=usize::MAX)).unwrap_or(6);
    // Written beside `layer_types`, and not read.
    fields.ignore(&["_sliding_window_pattern"]);
    let mut model = sandwich(fields, hf, &GEMMA3, every, [None; 2]);
    let local = fields.table("rope_parameters").and_then(|table| table.table("sliding_attention"));
    if let Some(local) = &local {
        local.require("rope_type", &Value::from("default"));
    }
    let base = local.and_then(|table| table.number("rope_theta"));
    let base = base.or_else(|| fields.number("rope_local_base_freq")).unwrap_or(10_000.0);
    model.rotary.window_base = model.window.map(|_| base);
    Transformer { qk_norm: true, ..model }
}

/// A model with norms on both sides of each part, in which every n-th block attends to the full context. `caps`: the
/// defaults of the caps of scores and logits.
fn sandwich(
    fields: &ConfigFields,
    hf: &Hf,
    absent: &llama::FamilyDefaults,
    every: usize,
    caps: [Option<f64>; 2],
) -> Transformer {
    let model = shared(fields, hf, absent);
    // The library ignores it in favour of `hidden_activation`.
    fields.ignore(&["hidden_act"]);
    let listed = windows::listed(fields, model.layers);
    let slides =
        listed.unwrap_or_else(|| (1..=model.layers).map(|number| !number.is_multiple_of(every)).collect());
    let window = fields.optional_size("sliding_window").or(Some(4096));
    let windows = windows::regular(fields, "layer_types", window, &slides);
    // Usually written as an integer.
    let scalar = fields.number("query_pre_attn_scalar").unwrap_or(256.0);
    // A scaled rotation scales scores, relative to one over the square root of a head's channels.
    let rotation = model.attention_scale.map_or(1.0, |scale| scale * (model.head_dim as f64).sqrt());
    Transformer {
        attention_scale: Some(rotation * scalar.sqrt().recip()),
        attention_softcap: fields.number_or("attn_logit_softcapping", caps[0]),
        activation: activation::read(fields, "hidden_activation", "gelu_pytorch_tanh", MlpActivation::Gate),
        norm_placement: NormPlacement::Sandwich,
        logit_softcap: fields.number_or("final_logit_softcapping", caps[1]),
        ..llama::with_windows(model, windows)
    }
}

/// What all have in common.
fn shared(fields: &ConfigFields, hf: &Hf, absent: &llama::FamilyDefaults) -> Transformer {
    let model = llama::shared(fields, hf, absent, None);
    let no = Value::from(false);
    fields.require("attention_bias", &no);
    fields.require("use_bidirectional_attention", &no);
    Transformer {
        embedding_scale: Some((model.d_model as f64).sqrt()),
        norm: Norm::RmsZeroCentered,
        tied: fields.flag("tie_word_embeddings").unwrap_or(true),
        ..model
    }
}
