//! The configurations of Mixtral, Qwen 3 MoE and OLMoE: mixtures of experts in all blocks.

use serde_json::{Value, json};

use super::fields::ConfigFields;
use super::{Hf, activation, llama};
use crate::schema::model::{Experts, MlpActivation, QkNormOver, Transformer};

const MIXTRAL: llama::FamilyDefaults = llama::FamilyDefaults {
    d_ff: 14_336,
    kv_heads: Some(8),
    positions: 131_072,
    base: 1_000_000.0,
    ..llama::LLAMA
};

const QWEN3: llama::FamilyDefaults = llama::FamilyDefaults {
    vocabulary: 151_936,
    d_model: 2048,
    layers: 24,
    kv_heads: Some(4),
    positions: 32_768,
    ..llama::LLAMA
};

const OLMOE: llama::FamilyDefaults = llama::FamilyDefaults {
    vocabulary: 50_304,
    d_model: 2048,
    d_ff: 2048,
    layers: 16,
    heads: 16,
    positions: 4096,
    ..llama::LLAMA
};

pub(super) fn mixtral(fields: &ConfigFields, hf: &Hf) -> Transformer {
    fields.require("router_jitter_noise", &json!(0.0));
    Transformer {
        window: fields.optional_size("sliding_window"),
        norm_epsilon: fields.number("rms_norm_eps").unwrap_or(1e-5),
        // The library always divides by the sum.
        experts: Some(experts(fields, 8, 2, true)),
        ..shared(fields, hf, &MIXTRAL)
    }
}

pub(super) fn qwen3(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &QWEN3);
    fields.require("attention_bias", &json!(false));
    // Blocks without experts, of width `intermediate_size`, which `shared` reads.
    fields.require("decoder_sparse_step", &json!(1));
    fields.require("mlp_only_layers", &json!([]));
    fields.ignore(&["max_window_layers"]);
    let slides = fields.flag("use_sliding_window").unwrap_or(false);
    let window = fields.optional_size("sliding_window");
    let window = if fields.is_null("sliding_window") { window } else { window.or(Some(4096)) };
    Transformer {
        window: window.filter(|_| slides),
        qk_norm: true,
        d_ff: fields.size("moe_intermediate_size", 768),
        experts: Some(experts(fields, 128, 8, fields.flag("norm_topk_prob").unwrap_or(false))),
        ..model
    }
}

pub(super) fn olmoe(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &OLMOE);
    fields.require("attention_bias", &json!(false));
    fields.require("clip_qkv", &Value::Null);
    Transformer {
        qk_norm: true,
        qk_norm_over: QkNormOver::AllHeads,
        norm_epsilon: fields.number("rms_norm_eps").unwrap_or(1e-5),
        experts: Some(experts(fields, 64, 8, fields.flag("norm_topk_prob").unwrap_or(false))),
        ..model
    }
}

fn shared(fields: &ConfigFields, hf: &Hf, absent: &llama::FamilyDefaults) -> Transformer {
    let model = llama::shared(fields, hf, absent, None);
    Transformer {
        activation: activation::read(fields, "hidden_act", "silu", MlpActivation::Gate),
        tied: fields.flag("tie_word_embeddings").unwrap_or(false),
        ..model
    }
}

/// The experts of all blocks, with the family's defaults.
fn experts(fields: &ConfigFields, count: usize, per_token: usize, normalize: bool) -> Experts {
    // With it, training adds a loss of the router.
    fields.require("output_router_logits", &json!(false));
    fields.ignore(&["router_aux_loss_coef"]);
    // The library writes either name.
    let [local, global] = ["num_local_experts", "num_experts"].map(|field| fields.optional_size(field));
    let count = local.or(global).unwrap_or(count);
    let per_token = fields.size("num_experts_per_tok", per_token);
    if count < 2 {
        fields.unsupported("num_experts", "2 or more");
    }
    if per_token > count {
        fields.unsupported("num_experts_per_tok", &format!("1 to {count}, the number of experts"));
    }
    Experts { count, per_token, normalize }
}
