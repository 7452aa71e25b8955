//! The configurations of GPT-NeoX, Phi-1 and Phi-2, and Falcon: attention beside the feed-forward layer.

use serde_json::Value;

use super::fields::ConfigFields;
use super::{Hf, activation, llama, rotary};
use crate::schema::model::{Dropout, MlpActivation, Norm, Positions, SubLayers, Transformer};

const PHI: llama::FamilyDefaults = llama::FamilyDefaults {
    vocabulary: 51_200,
    d_model: 2048,
    d_ff: 8192,
    layers: 24,
    partial: Some(0.5),
    ..llama::LLAMA
};

/// GPT-NeoX and Pythia.
pub(super) fn gpt_neox(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let layers = fields.layers("num_hidden_layers", 44);
    let d_model = fields.size("hidden_size", 6144);
    let heads = fields.size("num_attention_heads", 64);
    let positions = fields.size("max_position_embeddings", 2048);
    let context = hf.context.unwrap_or(positions);
    let model = Transformer::new(layers, d_model, heads, context);
    // Its own names of the base and of the share; the library ignores the usual names, which it wrote beside them.
    let base = fields.number("rotary_emb_base").unwrap_or(10_000.0);
    let share = fields.number("rotary_pct").unwrap_or(0.25);
    fields.require("rope_theta", &Value::from(base));
    fields.require("partial_rotary_factor", &Value::from(share));
    let sizes = rotary::Sizes {
        head_dim: model.head_dim,
        positions,
        context,
        original: None,
        base,
        kind: None,
        partial: Some(share),
    };
    let (rotary, score_factor) = rotary::read(fields, &sizes);
    fields.require("attention_bias", &Value::from(true));
    // Names of published files that the library does not read.
    fields.ignore(&["attention_probs_dropout_prob", "hidden_dropout_prob"]);
    let hidden = fields.dropout_rate("hidden_dropout", 0.0, hf);
    let attention = fields.dropout_rate("attention_dropout", 0.0, hf);
    let is_parallel = fields.flag("use_parallel_residual").unwrap_or(true);
    Transformer {
        vocabulary: fields.size("vocab_size", 50_432),
        attention_scale: (score_factor != 1.0).then(|| score_factor / (model.head_dim as f64).sqrt()),
        d_ff: fields.size("intermediate_size", 24_576),
        activation: activation::read(fields, "hidden_act", "gelu", MlpActivation::Plain),
        norm_epsilon: fields.number("layer_norm_eps").unwrap_or(1e-5),
        sub_layers: if is_parallel { SubLayers::Parallel } else { SubLayers::Sequential },
        positions: Positions::Rotary,
        rotary,
        tied: fields.flag("tie_word_embeddings").unwrap_or(false),
        dropout: Dropout { embedding: hidden, attention, residual: hidden },
        ..model
    }
}

/// Phi-1, Phi-1.5 and Phi-2.
pub(super) fn phi(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = llama::shared(fields, hf, &PHI, None);
    fields.require("qk_layernorm", &Value::from(false));
    // The head's bias would belong to the embedding.
    fields.require("tie_word_embeddings", &Value::from(false));
    let [embedding, residual] =
        ["embd_pdrop", "resid_pdrop"].map(|field| fields.dropout_rate(field, 0.0, hf));
    Transformer {
        activation: activation::read(fields, "hidden_act", "gelu_new", MlpActivation::Plain),
        norm: Norm::Layer,
        norm_epsilon: fields.number("layer_norm_eps").unwrap_or(1e-5),
        sub_layers: SubLayers::ParallelSharedNorm,
        bias: true,
        qkv_bias: true,
        tied: false,
        head_bias: true,
        dropout: Dropout { embedding, residual, ..model.dropout },
        ..model
    }
}

/// Falcon with rotary positions.
pub(super) fn falcon(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let layers = fields.layers("num_hidden_layers", 32);
    let d_model = fields.size(if fields.has("n_embed") { "n_embed" } else { "hidden_size" }, 4544);
    let heads = fields.size("num_attention_heads", 71);
    let positions = fields.size("max_position_embeddings", 2048);
    let context = hf.context.unwrap_or(positions);
    let model = Transformer::new(layers, d_model, heads, context);
    fields.ignore(&["hidden_size"]);
    if fields.flag("alibi") == Some(true) {
        let message = "`alibi` is true: ALiBi position biases are not supported".to_owned();
        fields.error("alibi", message, "use a model with rotary positions, such as Falcon 7B".to_owned());
    }
    fields.require("apply_residual_connection_post_layernorm", &Value::from(false));
    fields.require("ff_factor", &Value::from(4));
    let flag = |field: &str, default: bool| fields.flag(field).unwrap_or(default);
    let [is_new, shares_all, is_parallel] =
        [("new_decoder_architecture", false), ("multi_query", true), ("parallel_attn", true)]
            .map(|(field, default)| flag(field, default));
    let kv_heads = fields.optional_size("num_kv_heads").unwrap_or(heads);
    if !is_new && !shares_all && kv_heads != heads {
        fields.unsupported("num_kv_heads", &format!("{heads} with `multi_query` false"));
    }
    let norms = fields.optional_size("num_ln_in_parallel_attn");
    let sub_layers = match (is_new, is_parallel, norms) {
        (true, true, None | Some(2)) => SubLayers::Parallel,
        (true, true, Some(1)) | (false, true, None | Some(1)) => SubLayers::ParallelSharedNorm,
        (false, false, _) => SubLayers::Sequential,
        // The library does not run with these.
        (true, false, _) => {
            fields.unsupported("parallel_attn", "true with `new_decoder_architecture`");
            SubLayers::Parallel
        }
        (_, true, Some(_)) => {
            fields.unsupported("num_ln_in_parallel_attn", "1, or 2 with `new_decoder_architecture`");
            SubLayers::Parallel
        }
    };
    let sizes = rotary::Sizes {
        head_dim: model.head_dim,
        positions,
        context,
        original: None,
        base: 10_000.0,
        kind: None,
        partial: None,
    };
    let (rotary, score_factor) = rotary::read(fields, &sizes);
    // The library drops the sum of both parts, and no attention weights; after attention alone, at the rate of attention.
    let rates =
        ["hidden_dropout", "attention_dropout"].map(|field| (field, fields.dropout_rate(field, 0.0, hf)));
    let is_used = |field: &str| field == "hidden_dropout" || sub_layers == SubLayers::Sequential;
    for (field, _) in rates.iter().filter(|(field, rate)| is_used(field) && *rate > 0.0) {
        fields.unsupported(field, "0 in this family, or `dropout = false` in [model.hf]");
    }
    let bias = flag("bias", false);
    Transformer {
        vocabulary: fields.size("vocab_size", 65_024),
        kv_heads: if shares_all && !is_new { 1 } else { kv_heads },
        attention_scale: (score_factor != 1.0).then(|| score_factor / (model.head_dim as f64).sqrt()),
        d_ff: fields.optional_size("ffn_hidden_size").unwrap_or(model.d_ff),
        activation: activation::read(fields, "activation", "gelu", MlpActivation::Plain),
        norm_epsilon: fields.number("layer_norm_epsilon").unwrap_or(1e-5),
        sub_layers,
        positions: Positions::Rotary,
        rotary,
        bias,
        qkv_bias: bias,
        tied: fields.flag("tie_word_embeddings").unwrap_or(true),
        ..model
    }
}
