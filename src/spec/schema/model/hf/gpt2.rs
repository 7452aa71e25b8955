//! GPT-2's configuration.

use serde_json::Value;

use super::fields::{ConfigError, ConfigFields};
use super::{Hf, activation};
use crate::schema::model::{Dropout, MlpActivation, Transformer};

pub(super) fn read(fields: &ConfigFields, hf: &Hf) -> Result<Transformer, ConfigError> {
    let (layers, d_model, heads) =
        (fields.layers("n_layer")?, fields.size("n_embd")?, fields.size("n_head")?);
    let positions = fields.size("n_positions")?;
    let context = hf.context.unwrap_or(positions);
    if context > positions {
        return Err(ConfigError {
            field: Some("n_positions".to_owned()),
            message: format!("context = {context} exceeds the position table, `n_positions` = {positions}"),
            help: format!("use a context of at most {positions}"),
        });
    }
    // `summary_*` belong to other heads, `n_ctx` to older versions.
    fields.ignore(&["n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"]);
    fields.ignore(&["summary_type", "summary_use_proj"]);
    fields.require("scale_attn_by_inverse_layer_idx", &Value::from(false))?;
    fields.require("add_cross_attention", &Value::from(false))?;
    fields.require("is_encoder_decoder", &Value::from(false))?;
    // It only changes the order of operations.
    fields.flag("reorder_and_upcast_attn")?;
    let [embedding, attention, residual] =
        ["embd_pdrop", "attn_pdrop", "resid_pdrop"].map(|field| fields.dropout_rate(field, 0.1, hf));
    let dropout = Dropout { embedding: embedding?, attention: attention?, residual: residual? };
    let model = Transformer::new(layers, d_model, heads, context);
    Ok(Transformer {
        vocabulary: fields.size("vocab_size")?,
        d_ff: fields.optional_size("n_inner")?.unwrap_or(model.d_ff),
        activation: activation::read(fields, "activation_function", "gelu_new", MlpActivation::Plain)?,
        norm_epsilon: fields.number("layer_norm_epsilon")?.unwrap_or(model.norm_epsilon),
        attention_scale: (fields.flag("scale_attn_weights")? == Some(false)).then_some(1.0),
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(true),
        dropout,
        weights: hf.weights.clone(),
        ..model
    })
}
