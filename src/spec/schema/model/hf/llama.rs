//! The configurations of Llama, Mistral and Qwen, which share their field names.

use serde_json::Value;

use super::fields::{ConfigError, ConfigFields};
use super::{Hf, ModelFamily, activation, rotary, windows};
use crate::reader::parsers::UsizeRange;
use crate::schema::model::{Dropout, MlpActivation, Norm, Positions, Transformer};

pub(super) fn read(fields: &ConfigFields, hf: &Hf, family: ModelFamily) -> Result<Transformer, ConfigError> {
    let (window, global_every) = windows_of(fields, family)?;
    let (kv_heads, head_dim) = match family {
        ModelFamily::Mistral => (Some(8), None),
        ModelFamily::Qwen2 => (Some(32), None),
        ModelFamily::Qwen3 => (Some(32), Some(128)),
        _ => (None, None),
    };
    let absent = FamilyDefaults { kv_heads, head_dim };
    // Qwen 2 has biases of queries, keys and values without a field for them.
    let no = Value::from(false);
    fields.require("mlp_bias", &no)?;
    fields.require("attention_bias", &no)?;
    Ok(Transformer {
        window,
        global_every,
        qk_norm: family == ModelFamily::Qwen3,
        activation: activation::read(fields, "hidden_act", "silu", MlpActivation::Gate)?,
        qkv_bias: family == ModelFamily::Qwen2,
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        ..shared(fields, hf, absent)?
    })
}

/// The library's defaults for missing fields; `None` if the default is derived from other fields.
pub(super) struct FamilyDefaults {
    pub(super) kv_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
}

/// The fields that these families and Gemma share.
pub(super) fn shared(
    fields: &ConfigFields,
    hf: &Hf,
    absent: FamilyDefaults,
) -> Result<Transformer, ConfigError> {
    let layers = fields.layers("num_hidden_layers")?;
    let (d_model, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let positions = fields.size("max_position_embeddings")?;
    fields.require("add_cross_attention", &Value::from(false))?;
    fields.require("is_encoder_decoder", &Value::from(false))?;
    let dropout =
        Dropout { attention: fields.dropout_rate("attention_dropout", 0.0, hf)?, ..Dropout::default() };
    let model = Transformer::new(layers, d_model, heads, hf.context.unwrap_or(positions));
    Ok(Transformer {
        vocabulary: fields.size("vocab_size")?,
        kv_heads: fields.size_or("num_key_value_heads", heads, absent.kv_heads.unwrap_or(heads))?,
        head_dim: fields.size_or("head_dim", model.head_dim, absent.head_dim.unwrap_or(model.head_dim))?,
        d_ff: fields.size("intermediate_size")?,
        norm: Norm::Rms,
        norm_epsilon: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
        positions: Positions::Rotary,
        rotary: rotary::read(fields)?,
        bias: false,
        qkv_bias: false,
        dropout,
        weights: hf.weights.clone(),
        ..model
    })
}

/// `window` and `global_every`.
fn windows_of(
    fields: &ConfigFields,
    family: ModelFamily,
) -> Result<(Option<usize>, Option<usize>), ConfigError> {
    let layers = fields.layers("num_hidden_layers")?;
    let listed = windows::listed(fields, layers)?;
    let (field, slides) = match family {
        ModelFamily::Qwen2 | ModelFamily::Qwen3 => {
            // The first `max_window_layers` blocks attend to the full context.
            let first = fields.integer("max_window_layers", UsizeRange(0..=usize::MAX))?.unwrap_or(28);
            let slides = fields.flag("use_sliding_window")?.unwrap_or(false);
            ("max_window_layers", (0..layers).map(|layer| slides && layer >= first).collect())
        }
        ModelFamily::Mistral => ("sliding_window", vec![!fields.is_null("sliding_window"); layers]),
        _ => ("layer_types", vec![false; layers]),
    };
    // Llama has no windows: the field is left unread, so that it is reported as unknown.
    let window = if family == ModelFamily::Llama { None } else { fields.optional_size("sliding_window")? };
    let window = if family == ModelFamily::Mistral { window.or(Some(4096)) } else { window };
    match listed {
        Some(slides) => windows::regular(fields, "layer_types", window, &slides),
        None => windows::regular(fields, field, window, &slides),
    }
}
