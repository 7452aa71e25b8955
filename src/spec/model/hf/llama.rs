//! The configurations of Llama, and of Mistral and Qwen, which are called alike.

use serde_json::Value;

use super::Hf;
use super::fields::{Fields, Mistake};
use super::{activation, rotary, windows};
use crate::kinds::Count;
use crate::model::{Dropout, MlpActivation, Norm, Positions, Transformer};

pub(super) fn read(fields: &Fields, hf: &Hf, family: &str) -> Result<Transformer, Mistake> {
    let (window, global_every) = seen(fields, family)?;
    let (kv_heads, head_dim) = match family {
        "mistral" => (Some(8), None),
        "qwen2" => (Some(32), None),
        "qwen3" => (Some(32), Some(128)),
        _ => (None, None),
    };
    let absent = Absent { kv_heads, head_dim };
    // Qwen 2 has biases of queries, keys and values without a word of it.
    let no = Value::from(false);
    fields.is_just("mlp_bias", &no)?;
    fields.is_just("attention_bias", &no)?;
    Ok(Transformer {
        window,
        global_every,
        qk_norm: family == "qwen3",
        activation: activation::read(fields, "hidden_act", "silu", MlpActivation::Gate)?,
        qkv_bias: family == "qwen2",
        tied: fields.flag("tie_word_embeddings")?.unwrap_or(false),
        ..shared(fields, hf, absent)?
    })
}

/// What the library takes where a field is not there, if it is not what follows from others.
pub(super) struct Absent {
    pub(super) kv_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
}

/// What all of them have, and Gemma.
pub(super) fn shared(fields: &Fields, hf: &Hf, absent: Absent) -> Result<Transformer, Mistake> {
    let layers = fields.layers("num_hidden_layers")?;
    let (d_model, heads) = (fields.size("hidden_size")?, fields.size("num_attention_heads")?);
    let positions = fields.size("max_position_embeddings")?;
    fields.is_just("add_cross_attention", &Value::from(false))?;
    fields.is_just("is_encoder_decoder", &Value::from(false))?;
    let dropout = Dropout { attention: fields.chance("attention_dropout", 0.0, hf)?, ..Dropout::default() };
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
fn seen(fields: &Fields, family: &str) -> Result<(Option<usize>, Option<usize>), Mistake> {
    let layers = fields.layers("num_hidden_layers")?;
    let listed = windows::listed(fields, layers)?;
    let (field, slides) = match family {
        "qwen2" | "qwen3" => {
            // The first so many blocks see all.
            let first = fields.whole("max_window_layers", Count(0..=usize::MAX))?.unwrap_or(28);
            let slides = fields.flag("use_sliding_window")?.unwrap_or(false);
            ("max_window_layers", (0..layers).map(|layer| slides && layer >= first).collect())
        }
        "mistral" => ("sliding_window", vec![!fields.is_null("sliding_window"); layers]),
        _ => ("layer_types", vec![false; layers]),
    };
    // Llama has no windows: where it says something of them, that is not known.
    let window = if family == "llama" { None } else { fields.optional_size("sliding_window")? };
    let window = if family == "mistral" { window.or(Some(4096)) } else { window };
    match listed {
        Some(slides) => windows::regular(fields, "layer_types", window, &slides),
        None => windows::regular(fields, field, window, &slides),
    }
}
