//! The configurations of Llama and the families that share its field names.

use serde_json::Value;

use super::fields::ConfigFields;
use super::windows::{self, Windows};
use super::{Hf, ModelFamily, activation, rotary};
use crate::reader::parsers::UsizeRange;
use crate::schema::model::{Dropout, MlpActivation, Norm, Positions, Transformer};

/// The library's defaults of missing fields; `None`: derived from other fields.
pub(super) struct FamilyDefaults {
    pub(super) vocabulary: usize,
    pub(super) d_model: usize,
    pub(super) d_ff: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) positions: usize,
    /// The base of rotations.
    pub(super) base: f64,
    /// As in [`rotary::Sizes`].
    pub(super) kind: Option<&'static str>,
    pub(super) partial: Option<f64>,
}

pub(super) const LLAMA: FamilyDefaults = FamilyDefaults {
    vocabulary: 32_000,
    d_model: 4096,
    d_ff: 11_008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    positions: 2048,
    base: 10_000.0,
    kind: None,
    partial: None,
};
const MISTRAL: FamilyDefaults =
    FamilyDefaults { d_ff: 14_336, kv_heads: Some(8), positions: 131_072, ..LLAMA };
const QWEN2: FamilyDefaults =
    FamilyDefaults { vocabulary: 151_936, d_ff: 22_016, kv_heads: Some(32), positions: 32_768, ..LLAMA };
const QWEN3: FamilyDefaults = FamilyDefaults { head_dim: Some(128), ..QWEN2 };
const SMOLLM3: FamilyDefaults = FamilyDefaults {
    vocabulary: 128_256,
    d_model: 2048,
    layers: 36,
    heads: 16,
    kv_heads: Some(4),
    positions: 32_768,
    base: 2_000_000.0,
    ..LLAMA
};
const PHI3: FamilyDefaults = FamilyDefaults {
    vocabulary: 32_064,
    d_model: 3072,
    d_ff: 8192,
    positions: PHI3_POSITIONS,
    partial: Some(1.0),
    ..LLAMA
};
const PHI3_POSITIONS: usize = 4096;
const STARCODER2: FamilyDefaults = FamilyDefaults {
    vocabulary: 49_152,
    d_model: 3072,
    d_ff: 12_288,
    layers: 30,
    heads: 24,
    kv_heads: Some(2),
    positions: 4096,
    ..LLAMA
};

/// Llama, Mistral, Qwen 2, Qwen 3, SmolLM3 and Granite.
pub(super) fn read(fields: &ConfigFields, hf: &Hf, family: ModelFamily) -> Transformer {
    let absent = match family {
        ModelFamily::Mistral => MISTRAL,
        ModelFamily::Qwen2 => QWEN2,
        ModelFamily::Qwen3 => QWEN3,
        ModelFamily::Smollm3 => SMOLLM3,
        _ => LLAMA,
    };
    let model = shared(fields, hf, &absent, None);
    // Only Llama has an `mlp_bias`. Biases of attention alone are not supported, but for Qwen 2, which has biases of
    // queries, keys and values without a field for them.
    let [of_mlp, of_attention] =
        ["mlp_bias", "attention_bias"].map(|field| fields.flag(field).unwrap_or(false));
    if of_attention != of_mlp {
        fields.unsupported(
            if of_attention { "attention_bias" } else { "mlp_bias" },
            "biases in all layers or in none",
        );
    }
    let windows = windows_of(fields, family, model.layers);
    let model = with_windows(model, windows);
    let model = match family {
        ModelFamily::Smollm3 => with_skipped_rotations(fields, model),
        ModelFamily::Granite => with_multipliers(fields, model),
        _ => model,
    };
    Transformer {
        qk_norm: family == ModelFamily::Qwen3,
        activation: activation::read(fields, "hidden_act", "silu", MlpActivation::Gate),
        bias: of_mlp,
        qkv_bias: of_mlp || family == ModelFamily::Qwen2,
        tied: fields.flag("tie_word_embeddings").unwrap_or(family == ModelFamily::Smollm3),
        ..model
    }
}

/// SmolLM3: every n-th block does not rotate.
fn with_skipped_rotations(fields: &ConfigFields, mut model: Transformer) -> Transformer {
    let flag = |value: &Value| value.as_u64().filter(|flag| *flag <= 1).map(|flag| flag == 1);
    let listed = fields.value("no_rope_layers", "a list of 0 and 1, one for each layer", |value| {
        let rotated = value.as_array()?.iter().map(flag).collect::<Option<Vec<bool>>>()?;
        (rotated.len() >= model.layers).then(|| rotated[..model.layers].to_vec())
    });
    let every = fields.integer("no_rope_layer_interval", UsizeRange(1..=usize::MAX)).unwrap_or(4);
    let rotated =
        listed.unwrap_or_else(|| (1..=model.layers).map(|number| !number.is_multiple_of(every)).collect());
    let Some(first) = rotated.iter().position(|rotates| !rotates) else { return model };
    let every = first + 1;
    if every == 1 || rotated.iter().zip(1..).any(|(rotates, number)| *rotates == (number % every == 0)) {
        fields.unsupported("no_rope_layers", "0 at every n-th place, from the n-th on, with n at least 2");
    }
    model.rotary.skip_every = Some(every);
    model
}

/// Granite's multipliers.
fn with_multipliers(fields: &ConfigFields, model: Transformer) -> Transformer {
    let factor = |field: &str| fields.number(field).unwrap_or(1.0);
    let unless_one = |factor: f64| Some(factor).filter(|factor| *factor != 1.0);
    // A scaled rotation scales scores, relative to one over the square root of a head's channels.
    let rotation = model.attention_scale.map_or(1.0, |scale| scale * (model.head_dim as f64).sqrt());
    Transformer {
        embedding_scale: unless_one(factor("embedding_multiplier")),
        attention_scale: Some(rotation * factor("attention_multiplier")),
        residual_scale: unless_one(factor("residual_multiplier")),
        logit_scale: unless_one(factor("logits_scaling").recip()),
        ..model
    }
}

/// Phi-3 and Phi-4.
pub(super) fn phi3(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &PHI3, Some(PHI3_POSITIONS));
    // The library does not use it.
    fields.ignore(&["embd_pdrop"]);
    let no = Value::from(false);
    fields.require("attention_bias", &no);
    fields.require("mlp_bias", &no);
    Transformer {
        window: fields.optional_size("sliding_window"),
        norm_epsilon: fields.number("rms_norm_eps").unwrap_or(1e-5),
        activation: activation::read(fields, "hidden_act", "silu", MlpActivation::Gate),
        dropout: Dropout { residual: fields.dropout_rate("resid_pdrop", 0.0, hf), ..model.dropout },
        tied: fields.flag("tie_word_embeddings").unwrap_or(false),
        ..model
    }
}

/// StarCoder2: layer norms, biases and no gate.
pub(super) fn starcoder2(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &STARCODER2, None);
    // Fields of published files that the library does not read.
    fields.ignore(&[
        "activation_function",
        "attention_softmax_in_fp32",
        "layer_norm_epsilon",
        "mlp_type",
        "norm_type",
    ]);
    fields.ignore(&[
        "scale_attention_softmax_in_fp32",
        "scale_attn_weights",
        "attn_pdrop",
        "resid_pdrop",
        "embd_pdrop",
    ]);
    let bias = fields.flag("use_bias").unwrap_or(true);
    let dropout = Dropout {
        embedding: fields.dropout_rate("embedding_dropout", 0.0, hf),
        residual: fields.dropout_rate("residual_dropout", 0.0, hf),
        ..model.dropout
    };
    Transformer {
        window: fields.optional_size("sliding_window"),
        activation: activation::read(fields, "hidden_act", "gelu_pytorch_tanh", MlpActivation::Plain),
        norm: Norm::Layer,
        norm_epsilon: fields.number("norm_epsilon").unwrap_or(1e-5),
        bias,
        qkv_bias: bias,
        dropout,
        tied: fields.flag("tie_word_embeddings").unwrap_or(true),
        ..model
    }
}

/// The fields that these families and Gemma share. `original`: the family's default of the context that a model was trained
/// on before its rotation was scaled.
pub(super) fn shared(
    fields: &ConfigFields,
    hf: &Hf,
    absent: &FamilyDefaults,
    original: Option<usize>,
) -> Transformer {
    let layers = fields.layers("num_hidden_layers", absent.layers);
    let d_model = fields.size("hidden_size", absent.d_model);
    let heads = fields.size("num_attention_heads", absent.heads);
    let positions = fields.size("max_position_embeddings", absent.positions);
    let context = hf.context.unwrap_or(positions);
    let model = Transformer::new(layers, d_model, heads, context);
    // A default that does not divide the heads is another model's: no version of the library runs with it.
    let default = absent.kv_heads.filter(|kv_heads| heads.is_multiple_of(*kv_heads)).unwrap_or(heads);
    let kv_heads = fields.size_or("num_key_value_heads", heads, default);
    let head_dim = fields.size_or("head_dim", model.head_dim, absent.head_dim.unwrap_or(model.head_dim));
    let (rotary, score_factor) = rotary::read(
        fields,
        &rotary::Sizes {
            head_dim,
            positions,
            context,
            original,
            base: absent.base,
            kind: absent.kind,
            partial: absent.partial,
        },
    );
    let dropout =
        Dropout { attention: fields.dropout_rate("attention_dropout", 0.0, hf), ..Dropout::default() };
    Transformer {
        vocabulary: fields.size("vocab_size", absent.vocabulary),
        kv_heads,
        head_dim,
        attention_scale: (score_factor != 1.0).then(|| score_factor / (head_dim as f64).sqrt()),
        d_ff: fields.size("intermediate_size", absent.d_ff),
        norm: Norm::Rms,
        norm_epsilon: fields.number("rms_norm_eps").unwrap_or(1e-6),
        positions: Positions::Rotary,
        rotary,
        bias: false,
        qkv_bias: false,
        dropout,
        ..model
    }
}

pub(super) fn with_windows(model: Transformer, windows: Windows) -> Transformer {
    let Windows { window, global_every, global_first } = windows;
    Transformer { window, global_every, global_first, ..model }
}

fn windows_of(fields: &ConfigFields, family: ModelFamily, layers: usize) -> Windows {
    let (field, slides) = match family {
        // The library's Llama ignores `sliding_window`, which is reported as unknown.
        ModelFamily::Llama | ModelFamily::Granite => return Windows::default(),
        ModelFamily::Smollm3 => {
            fields.require("use_sliding_window", &Value::from(false));
            fields.ignore(&["sliding_window", "max_window_layers"]);
            if windows::listed(fields, layers).is_some_and(|slides| slides.contains(&true)) {
                fields.unsupported("layer_types", "\"full_attention\" in all layers of this family");
            }
            return Windows::default();
        }
        ModelFamily::Qwen2 | ModelFamily::Qwen3 => {
            // The first `max_window_layers` blocks attend to the full context.
            let first = fields.integer("max_window_layers", UsizeRange(0..=usize::MAX)).unwrap_or(28);
            let slides = fields.flag("use_sliding_window").unwrap_or(false);
            ("max_window_layers", (0..layers).map(|layer| slides && layer >= first).collect())
        }
        _ => ("sliding_window", vec![!fields.is_null("sliding_window"); layers]),
    };
    let window = fields.optional_size("sliding_window");
    let window = if fields.is_null("sliding_window") { window } else { window.or(Some(4096)) };
    // Mistral ignores `layer_types`, which is reported as unknown.
    let listed = (family != ModelFamily::Mistral).then(|| windows::listed(fields, layers)).flatten();
    match listed {
        Some(slides) => windows::regular(fields, "layer_types", window, &slides),
        None => windows::regular(fields, field, window, &slides),
    }
}
