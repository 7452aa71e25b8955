//! The configurations of Mixtral, Qwen 3 MoE and OLMoE: mixtures of experts in all blocks.

use serde_json::{Value, json};

use super::fields::ConfigFields;
use super::{Hf, activation, llama};
use crate::schema::model::transformer::{COUNT, PER_TOKEN};
use crate::schema::model::{Experts, MlpActivation, QkNormOver, Transformer};

/// The names of the number of experts: versions of the library write either.
const LOCAL: &str = "num_local_experts";
const GLOBAL: &str = "num_experts";

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
        experts: Some(experts(fields, [LOCAL, GLOBAL], (8, 2), true)),
        ..shared(fields, hf, &MIXTRAL)
    }
}

pub(super) fn qwen3(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &QWEN3);
    fields.require("attention_bias", &json!(false));
    // Blocks without experts, of width `intermediate_size`, which `shared` reads.
    fields.require("decoder_sparse_step", &json!(1));
    fields.require("mlp_only_layers", &json!([]));
    let normalize = fields.flag("norm_topk_prob").unwrap_or(false);
    let slides = fields.flag("use_sliding_window").unwrap_or(false);
    match slides {
        // Versions of the library differ in whether the first blocks have no window.
        true => drop(fields.require("max_window_layers", &json!(0))),
        false => fields.ignore(&["max_window_layers"]),
    }
    let window = fields.optional_size("sliding_window");
    let window = if fields.is_null("sliding_window") { window } else { window.or(Some(4096)) };
    Transformer {
        window: window.filter(|_| slides),
        qk_norm: true,
        d_ff: fields.size("moe_intermediate_size", 768),
        experts: Some(experts(fields, [GLOBAL, LOCAL], (128, 8), normalize)),
        ..model
    }
}

pub(super) fn olmoe(fields: &ConfigFields, hf: &Hf) -> Transformer {
    let model = shared(fields, hf, &OLMOE);
    fields.require("attention_bias", &json!(false));
    fields.require("clip_qkv", &Value::Null);
    if model.head_dim * model.heads != model.d_model {
        fields.unsupported("head_dim", "`hidden_size` divided by `num_attention_heads`");
    }
    let normalize = fields.flag("norm_topk_prob").unwrap_or(false);
    Transformer {
        qk_norm: true,
        qk_norm_over: QkNormOver::AllHeads,
        norm_epsilon: fields.number("rms_norm_eps").unwrap_or(1e-5),
        experts: Some(experts(fields, [GLOBAL, LOCAL], (64, 8), normalize)),
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

/// The experts of all blocks, with the family's defaults. `names`: of their number, first the library's own.
fn experts(
    fields: &ConfigFields,
    names: [&str; 2],
    (count, per_token): (usize, usize),
    normalize: bool,
) -> Experts {
    // With it, training adds a loss of the router.
    fields.require("output_router_logits", &json!(false));
    fields.ignore(&["router_aux_loss_coef"]);
    let [own, other] = names.map(|name| fields.integer(name, COUNT));
    if let (Some(own), Some(other)) = (own, other)
        && own != other
    {
        let message = format!("`{}` is {own}, but `{}` is {other}", names[0], names[1]);
        fields.error(names[1], message, "both are the number of experts: remove one".to_owned());
    }
    let count = own.or(other).unwrap_or(count);
    let per_token = fields.integer("num_experts_per_tok", PER_TOKEN).unwrap_or(per_token);
    if per_token > count {
        let message = format!("`num_experts_per_tok` is {per_token}, above the number of experts, {count}");
        fields.error("num_experts_per_tok", message, format!("use 1 to {count}"));
    }
    Experts { count, per_token, normalize }
}
