//! GPT-2's configuration.

use serde_json::Value;

use super::fields::{Fields, Mistake};
use super::{Hf, activation};
use crate::model::{Dropout, MlpActivation, Transformer};

pub(super) fn read(fields: &Fields, hf: &Hf) -> Result<Transformer, Mistake> {
    let (layers, d_model, heads) =
        (fields.layers("n_layer")?, fields.size("n_embd")?, fields.size("n_head")?);
    let positions = fields.size("n_positions")?;
    let context = hf.context.unwrap_or(positions);
    if context > positions {
        return Err(Mistake {
            field: Some("n_positions".to_owned()),
            message: format!(
                "the table of positions has `n_positions` = {positions} of them, and context = {context}"
            ),
            help: format!("a context of up to {positions} does"),
        });
    }
    // Summaries are of other heads, `n_ctx` of older versions.
    fields.pass_over(&["n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels"]);
    fields.pass_over(&["summary_type", "summary_use_proj"]);
    fields.is_just("scale_attn_by_inverse_layer_idx", &Value::from(false))?;
    fields.is_just("add_cross_attention", &Value::from(false))?;
    fields.is_just("is_encoder_decoder", &Value::from(false))?;
    // The same in another order.
    fields.flag("reorder_and_upcast_attn")?;
    let [embedding, attention, residual] =
        ["embd_pdrop", "attn_pdrop", "resid_pdrop"].map(|field| fields.chance(field, 0.1, hf));
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
