//! The reverse of reading: a `config.json` that the library reads as a given transformer.

use serde_json::{Map, Value, json};

use super::{Hf, ModelFamily, describe};
use crate::reader::declare::KeywordEnum;
use crate::schema::model::{MlpActivation, RotaryScaling, SubLayers, Transformer};
use data::TensorNaming;

/// A model as the library names it.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfiguration {
    pub family: ModelFamily,
    /// The content of `config.json`.
    pub fields: Value,
}

impl ModelFamily {
    /// The names of a model's tensors in checkpoints.
    pub fn naming(self) -> TensorNaming {
        match self {
            ModelFamily::Gpt2 => TensorNaming::Gpt2,
            ModelFamily::Llama
            | ModelFamily::Mistral
            | ModelFamily::Qwen2
            | ModelFamily::Qwen3
            | ModelFamily::Gemma
            | ModelFamily::Gemma2
            | ModelFamily::Gemma3
            | ModelFamily::Smollm3
            | ModelFamily::Granite
            | ModelFamily::Olmo2
            | ModelFamily::Olmo3
            | ModelFamily::Qwen3Moe
            | ModelFamily::Olmoe => TensorNaming::Llama,
            ModelFamily::Mixtral => TensorNaming::Mixtral,
            ModelFamily::GptNeox => TensorNaming::GptNeox,
            ModelFamily::Phi => TensorNaming::Phi,
            ModelFamily::Falcon => TensorNaming::Falcon,
            ModelFamily::Phi3 => TensorNaming::Phi3,
            ModelFamily::Starcoder2 => TensorNaming::Starcoder2,
            ModelFamily::GptNeo => TensorNaming::GptNeo,
        }
    }
}

impl Transformer {
    /// `new_decoder_architecture` of the model as a Falcon.
    pub fn is_new_falcon(&self) -> bool {
        self.sub_layers == SubLayers::Parallel || ![1, self.heads].contains(&self.kv_heads)
    }

    /// The configuration of its family; without one, of the first family whose model this is: read back, it is equal.
    /// `None` if no family has it.
    pub fn hf_configuration(&self) -> Option<HfConfiguration> {
        let families = self.family.as_ref().map_or(ModelFamily::ALL, std::slice::from_ref);
        families.iter().find_map(|&family| {
            let model = Transformer { weights: None, family: Some(family), ..self.clone() };
            let mut fields = fields(&model, family)?;
            fields.insert("model_type".to_owned(), family.keyword().into());
            fields.insert("architectures".to_owned(), json!([family.class()]));
            // Without them, the library takes those of a published model.
            let ids = ["bos_token_id", "eos_token_id", "pad_token_id"];
            fields.extend(ids.map(|id| (id.to_owned(), Value::Null)));
            fields.insert("initializer_range".to_owned(), model.initial_deviation.into());
            let is_equal = describe(&fields, &Hf::default()).is_ok_and(|read| read.model == model);
            is_equal.then_some(HfConfiguration { family, fields: Value::Object(fields) })
        })
    }
}

/// The fields that describe a model as one of a family, whether or not it is one.
fn fields(model: &Transformer, family: ModelFamily) -> Option<Map<String, Value>> {
    let function = match model.activation {
        MlpActivation::Plain(function) | MlpActivation::Gate(function) => function,
    };
    let names = function.definition().hugging_face;
    // Of the names of one function, the one of the family's published files: the library computes them differently.
    let own = names.iter().find(|name| {
        **name == "gelu_pytorch_tanh"
            && matches!(
                family,
                ModelFamily::Gemma | ModelFamily::Gemma2 | ModelFamily::Gemma3 | ModelFamily::Starcoder2
            )
    });
    let activation = own.or(names.first())?;
    let fields = match family {
        ModelFamily::Gpt2 => json!({
            "n_layer": model.layers,
            "n_embd": model.d_model,
            "n_head": model.heads,
            "n_positions": model.context,
            "n_inner": model.d_ff,
            "vocab_size": model.vocabulary,
            "activation_function": activation,
            "layer_norm_epsilon": model.norm_epsilon,
            "scale_attn_weights": model.attention_scale.is_none(),
            "tie_word_embeddings": model.tied,
            "embd_pdrop": model.dropout.embedding,
            "attn_pdrop": model.dropout.attention,
            "resid_pdrop": model.dropout.residual,
        }),
        ModelFamily::GptNeo => json!({
            "num_layers": model.layers,
            "hidden_size": model.d_model,
            "num_heads": model.heads,
            "max_position_embeddings": model.context,
            "intermediate_size": model.d_ff,
            "vocab_size": model.vocabulary,
            "activation_function": activation,
            "layer_norm_epsilon": model.norm_epsilon,
            "tie_word_embeddings": model.tied,
            "embed_dropout": model.dropout.embedding,
            "attention_dropout": model.dropout.attention,
            "resid_dropout": model.dropout.residual,
            "window_size": model.window.unwrap_or(model.context),
            "attention_types": layer_types(model, ["local", "global"]).map(|word| json!([[word], 1])).collect::<Value>(),
        }),
        ModelFamily::GptNeox => json!({
            "num_hidden_layers": model.layers,
            "hidden_size": model.d_model,
            "num_attention_heads": model.heads,
            "max_position_embeddings": model.context,
            "intermediate_size": model.d_ff,
            "vocab_size": model.vocabulary,
            "hidden_act": activation,
            "layer_norm_eps": model.norm_epsilon,
            "use_parallel_residual": model.sub_layers == SubLayers::Parallel,
            "rotary_pct": rotated_share(model),
            "rotary_emb_base": model.rotary.base,
            "rope_scaling": scaling(model),
            "tie_word_embeddings": model.tied,
            "attention_dropout": model.dropout.attention,
            "hidden_dropout": model.dropout.residual,
        }),
        ModelFamily::Falcon => {
            let is_new = model.is_new_falcon();
            json!({
                "num_hidden_layers": model.layers,
                "hidden_size": model.d_model,
                "num_attention_heads": model.heads,
                "num_kv_heads": if is_new { model.kv_heads } else { model.heads },
                "max_position_embeddings": model.context,
                "ffn_hidden_size": model.d_ff,
                "vocab_size": model.vocabulary,
                "activation": activation,
                "layer_norm_epsilon": model.norm_epsilon,
                "new_decoder_architecture": is_new,
                "multi_query": model.kv_heads == 1,
                "parallel_attn": model.sub_layers != SubLayers::Sequential,
                "num_ln_in_parallel_attn": is_new.then_some(if model.sub_layers == SubLayers::Parallel { 2 } else { 1 }),
                "bias": model.bias,
                "rope_theta": model.rotary.base,
                "rope_scaling": scaling(model),
                "tie_word_embeddings": model.tied,
                "attention_dropout": 0.0,
                "hidden_dropout": 0.0,
            })
        }
        ModelFamily::Llama
        | ModelFamily::Mistral
        | ModelFamily::Qwen2
        | ModelFamily::Qwen3
        | ModelFamily::Gemma
        | ModelFamily::Gemma2
        | ModelFamily::Gemma3
        | ModelFamily::Smollm3
        | ModelFamily::Granite
        | ModelFamily::Olmo2
        | ModelFamily::Olmo3
        | ModelFamily::Phi
        | ModelFamily::Phi3
        | ModelFamily::Starcoder2
        | ModelFamily::Mixtral
        | ModelFamily::Qwen3Moe
        | ModelFamily::Olmoe => {
            let mut fields = json!({
                "num_hidden_layers": model.layers,
                "hidden_size": model.d_model,
                "num_attention_heads": model.heads,
                "num_key_value_heads": model.kv_heads,
                "head_dim": model.head_dim,
                "intermediate_size": model.d_ff,
                "vocab_size": model.vocabulary,
                "max_position_embeddings": model.context,
                "rms_norm_eps": model.norm_epsilon,
                "hidden_act": activation,
                "tie_word_embeddings": model.tied,
                "attention_dropout": model.dropout.attention,
                "rope_theta": model.rotary.base,
                "rope_scaling": scaling(model),
            });
            let sliding = || layer_types(model, ["sliding_attention", "full_attention"]).collect::<Vec<_>>();
            let more = match family {
                ModelFamily::Llama => json!({ "attention_bias": model.bias, "mlp_bias": model.bias }),
                ModelFamily::Mistral => json!({ "sliding_window": model.window }),
                ModelFamily::Mixtral => json!({
                    "sliding_window": model.window,
                    "num_local_experts": model.experts.as_ref()?.count,
                    "num_experts_per_tok": model.experts.as_ref()?.per_token,
                }),
                ModelFamily::Qwen3Moe => json!({
                    "moe_intermediate_size": model.d_ff,
                    "use_sliding_window": model.window.is_some(),
                    "sliding_window": model.window,
                    "max_window_layers": 0,
                    "num_experts": model.experts.as_ref()?.count,
                    "num_experts_per_tok": model.experts.as_ref()?.per_token,
                    "norm_topk_prob": model.experts.as_ref()?.normalize,
                }),
                ModelFamily::Olmoe => json!({
                    "num_experts": model.experts.as_ref()?.count,
                    "num_experts_per_tok": model.experts.as_ref()?.per_token,
                    "norm_topk_prob": model.experts.as_ref()?.normalize,
                }),
                ModelFamily::Phi3 => json!({
                    "sliding_window": model.window,
                    "partial_rotary_factor": rotated_share(model),
                    "resid_pdrop": model.dropout.residual,
                }),
                ModelFamily::Starcoder2 => json!({
                    "sliding_window": model.window,
                    "norm_epsilon": model.norm_epsilon,
                    "use_bias": model.bias,
                    "embedding_dropout": model.dropout.embedding,
                    "residual_dropout": model.dropout.residual,
                }),
                ModelFamily::Phi => json!({
                    "layer_norm_eps": model.norm_epsilon,
                    "partial_rotary_factor": rotated_share(model),
                    "embd_pdrop": model.dropout.embedding,
                    "resid_pdrop": model.dropout.residual,
                }),
                ModelFamily::Gemma => json!({ "hidden_activation": activation }),
                ModelFamily::Qwen2 | ModelFamily::Qwen3 if model.window.is_some() => json!({
                    "use_sliding_window": true,
                    "sliding_window": model.window,
                    "layer_types": sliding(),
                }),
                ModelFamily::Smollm3 => json!({
                    "attention_bias": model.bias,
                    "mlp_bias": model.bias,
                    "no_rope_layers": (0..model.layers).map(|block| u8::from(model.rotation_of(block).is_some())).collect::<Vec<_>>(),
                }),
                ModelFamily::Granite => json!({
                    "attention_bias": model.bias,
                    "mlp_bias": model.bias,
                    "embedding_multiplier": model.embedding_scale.unwrap_or(1.0),
                    "attention_multiplier": model.attention_scale,
                    "residual_multiplier": model.residual_scale.unwrap_or(1.0),
                    "logits_scaling": model.logit_scale.unwrap_or(1.0).recip(),
                }),
                ModelFamily::Olmo3 => json!({
                    "rope_scaling": null,
                    "rope_parameters": {
                        "sliding_attention": { "rope_type": "default", "rope_theta": model.rotary.window_base },
                        "full_attention": scaling_with_base(model),
                    },
                    // The library needs one even if no block slides.
                    "sliding_window": model.window.unwrap_or(model.context),
                    "layer_types": sliding(),
                }),
                ModelFamily::Gemma2 | ModelFamily::Gemma3 => json!({
                    "rope_local_base_freq": model.rotary.window_base,
                    "hidden_activation": activation,
                    // The library needs one even if no block slides.
                    "sliding_window": model.window.unwrap_or(model.context),
                    "layer_types": sliding(),
                    "query_pre_attn_scalar": model.attention_scale.map(|scale| (1.0 / (scale * scale)).round() as u64),
                    "attn_logit_softcapping": model.attention_softcap,
                    "final_logit_softcapping": model.logit_softcap,
                }),
                _ => json!({}),
            };
            fields.as_object_mut()?.extend(more.as_object()?.clone());
            fields
        }
    };
    fields.as_object().cloned()
}

/// For each block the first word if it attends to the window, or the second if it attends to the full context.
fn layer_types(model: &Transformer, [window, full]: [&'static str; 2]) -> impl Iterator<Item = &'static str> {
    (0..model.layers).map(move |block| if model.window_of(block).is_some() { window } else { full })
}

/// The scaling of rotations. Equal divisors are linear scaling's, others LongRoPE's, whose attention factor scales queries
/// and keys.
fn scaling(model: &Transformer) -> Value {
    if let Some(&RotaryScaling { factor, low, high, original }) = model.rotary.scaling.as_ref() {
        return json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        });
    }
    let Some(&first) = model.rotary.divisors.first() else { return Value::Null };
    if model.rotary.divisors.iter().all(|divisor| *divisor == first) {
        return json!({ "rope_type": "linear", "factor": first });
    }
    let scale = model.attention_scale.map_or(1.0, |scale| scale * (model.head_dim as f64).sqrt());
    json!({
        "rope_type": "longrope",
        "short_factor": model.rotary.divisors,
        "long_factor": model.rotary.divisors,
        "original_max_position_embeddings": model.context,
        "attention_factor": scale.sqrt(),
    })
}

/// The share of a head's rotated channels: the library rounds its product with the channels down.
fn rotated_share(model: &Transformer) -> f64 {
    let [rotated, channels] = [model.rotated_channels(), model.head_dim].map(|channels| channels as f64);
    let share = rotated / channels;
    if share * channels < rotated { (rotated + 0.5) / channels } else { share }
}

/// The scaling with the base of the rotation.
fn scaling_with_base(model: &Transformer) -> Value {
    let mut table = scaling(model);
    if table.is_null() {
        table = json!({ "rope_type": "default" });
    }
    table["rope_theta"] = model.rotary.base.into();
    table
}

#[cfg(test)]
mod tests {
    use super::super::configurations::{gemma2, gpt2, llama, with};
    use super::*;

    fn read(fields: &Value) -> Transformer {
        let described = describe(fields.as_object().unwrap(), &Hf::default());
        described.unwrap_or_else(|errors| panic!("{fields}: {errors:?}")).model
    }

    /// One configuration of each family.
    #[test]
    fn configurations_that_were_read_are_written_equal() {
        let plain = || with(&llama(), &json!({ "rope_scaling": null }));
        let of = |family: ModelFamily| match family {
            ModelFamily::Gpt2 => gpt2(),
            ModelFamily::GptNeo => {
                json!({ "num_layers": 4, "hidden_size": 64, "num_heads": 4, "window_size": 64 })
            }
            ModelFamily::Llama => llama(),
            ModelFamily::Gemma | ModelFamily::Gemma2 => gemma2(),
            ModelFamily::Gemma3 => json!({
                "num_hidden_layers": 6,
                "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
            }),
            ModelFamily::Smollm3 => json!({ "num_hidden_layers": 8 }),
            ModelFamily::Granite => json!({
                "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.22, "logits_scaling": 8.0,
            }),
            ModelFamily::GptNeox => json!({ "num_hidden_layers": 4, "rotary_pct": 0.5 }),
            ModelFamily::Phi => {
                json!({ "hidden_size": 2560, "partial_rotary_factor": 0.4, "num_key_value_heads": 8 })
            }
            ModelFamily::Falcon => {
                json!({ "new_decoder_architecture": true, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2 })
            }
            ModelFamily::Olmo2 => json!({ "num_key_value_heads": 8 }),
            ModelFamily::Olmo3 => json!({
                "rope_scaling": { "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512 },
            }),
            ModelFamily::Mistral => with(&plain(), &json!({ "sliding_window": 64 })),
            ModelFamily::Qwen2 | ModelFamily::Qwen3 => with(
                &plain(),
                &json!({ "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 0 }),
            ),
            ModelFamily::Mixtral | ModelFamily::Olmoe => plain(),
            ModelFamily::Phi3 => with(&plain(), &json!({ "partial_rotary_factor": 0.75 })),
            ModelFamily::Qwen3Moe => {
                with(&plain(), &json!({ "sliding_window": 64, "use_sliding_window": true }))
            }
            ModelFamily::Starcoder2 => with(&plain(), &json!({ "hidden_act": "gelu_pytorch_tanh" })),
        };
        for family in ModelFamily::ALL {
            let config = with(&of(*family), &json!({ "model_type": family.keyword() }));
            let model = read(&config);
            assert_eq!(model.family, Some(*family));
            let written = model.hf_configuration().unwrap_or_else(|| panic!("{config} is not written"));
            assert_eq!(written.family, *family);
            assert_eq!(read(&written.fields), model, "{config}");
        }
    }

    #[test]
    fn scaled_rotations_are_written_equal() {
        for scaling in [
            json!({ "rope_type": "linear", "factor": 4.0 }),
            json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768 }),
        ] {
            let model = read(&with(&llama(), &json!({ "rope_scaling": scaling })));
            let written = model.hf_configuration().unwrap_or_else(|| panic!("{scaling} is not written"));
            assert_eq!(read(&written.fields), model);
        }
    }

    #[test]
    fn models_of_no_family_are_not_written() {
        let model = Transformer { bias: false, ..Transformer::new(2, 32, 2, 16) };
        assert_eq!(model.hf_configuration(), None);
    }
}
