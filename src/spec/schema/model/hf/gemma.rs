//! Gemma 2's configuration.

use serde_json::Value;

use super::Hf;
use super::fields::{ConfigError, ConfigFields};
use super::{activation, llama, windows};
use crate::schema::model::{MlpActivation, Norm, NormPlacement, Transformer};

pub(super) fn read(fields: &ConfigFields, hf: &Hf) -> Result<Transformer, ConfigError> {
    let absent = llama::FamilyDefaults { kv_heads: Some(4), head_dim: Some(256) };
    let model = llama::shared(fields, hf, absent)?;
    // The library ignores it in favour of `hidden_activation`.
    fields.ignore(&["hidden_act"]);
    let no = Value::from(false);
    fields.require("attention_bias", &no)?;
    fields.require("use_bidirectional_attention", &no)?;
    let listed = windows::listed(fields, model.layers)?;
    let slides = listed.unwrap_or_else(|| (0..model.layers).map(|layer| layer.is_multiple_of(2)).collect());
    let window = fields.optional_size("sliding_window")?.or(Some(4096));
    let (window, global_every) = windows::regular(fields, "layer_types", window, &slides)?;
    // Usually written as an integer.
    let scalar = fields.number("query_pre_attn_scalar")?.unwrap_or(256.0);
    Ok(Transformer {
        embedding_scale: Some((model.d_model as f64).sqrt()),
        window,
        global_every,
        attention_scale: Some(scalar.sqrt().recip()),
        attention_softcap: fields.number_or("attn_logit_softcapping", 50.0)?,
        activation: activation::read(fields, "hidden_activation", "gelu_pytorch_tanh", MlpActivation::Gate)?,
        norm: Norm::RmsZeroCentered,
        norm_placement: NormPlacement::Sandwich,
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(true),
        logit_softcap: fields.number_or("final_logit_softcapping", 30.0)?,
        ..model
    })
}
