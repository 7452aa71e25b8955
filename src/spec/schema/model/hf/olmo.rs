//! The configurations of OLMo 2 and OLMo 3: norms of sub-layer outputs, and norms over all heads of queries and keys.

use serde_json::Value;

use super::fields::ConfigFields;
use super::{Hf, activation, llama, windows};
use crate::schema::model::{MlpActivation, NormPlacement, QkNormOver, Transformer};

const OLMO2: llama::FamilyDefaults = llama::FamilyDefaults { vocabulary: 50_304, ..llama::LLAMA };

const OLMO3: llama::FamilyDefaults =
    llama::FamilyDefaults { base: OLMO3_BASE, kind: Some("full_attention"), ..OLMO2 };
const OLMO3_BASE: f64 = 500_000.0;

/// The n-th block of OLMo 3 that attends to the full context, if the file does not list the blocks.
const FULL_EVERY: usize = 4;

pub(super) fn olmo2(fields: &ConfigFields, hf: &Hf) -> Transformer {
    shared(fields, hf, &OLMO2)
}

/// OLMo 3: blocks with a window, which rotate without scaling.
pub(super) fn olmo3(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &OLMO3);
    let local = fields.table("rope_parameters").and_then(|table| table.table("sliding_attention"));
    if let Some(local) = &local {
        local.require("rope_type", &Value::from("default"));
    }
    let base = local.as_ref().and_then(|table| table.number("rope_theta"));
    if let Some(local) = &local {
        local.check_unread("OLMo 3");
    }
    let slides = windows::listed(fields, model.layers)
        .unwrap_or_else(|| (1..=model.layers).map(|number| !number.is_multiple_of(FULL_EVERY)).collect());
    let window = fields.optional_size("sliding_window");
    let window = if fields.is_null("sliding_window") { window } else { window.or(Some(4096)) };
    let windows = windows::regular(fields, "layer_types", window, &slides);
    let mut model = llama::with_windows(model, windows);
    if model.window.is_some() {
        // Version 4 of the library uses it in blocks with a window, too; version 5 the default.
        if base.is_none() && fields.number("rope_theta").is_some_and(|theta| theta != OLMO3_BASE) {
            fields
                .unsupported("rope_theta", "500000, or `rope_parameters` with a base for each kind of layer");
        }
        model.rotary.window_base = Some(base.unwrap_or(OLMO3_BASE));
        model.window_attention_scale = model.attention_scale.map(|_| (model.head_dim as f64).sqrt().recip());
    }
    model
}

fn shared(fields: &ConfigFields, hf: &Hf, absent: &llama::FamilyDefaults) -> Transformer {
    let model = llama::shared(fields, hf, absent, None);
    fields.require("attention_bias", &Value::from(false));
    Transformer {
        qk_norm: true,
        qk_norm_over: QkNormOver::AllHeads,
        activation: activation::read(fields, "hidden_act", "silu", MlpActivation::Gate),
        norm_epsilon: fields.number("rms_norm_eps").unwrap_or(1e-5),
        norm_placement: NormPlacement::Output,
        tied: fields.flag("tie_word_embeddings").unwrap_or(false),
        ..model
    }
}
