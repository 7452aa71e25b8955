//! The reverse of reading: a `config.json` that the library reads as a given transformer.

use serde_json::{Map, Value, json};

use super::fields::ConfigFields;
use super::{Hf, ModelFamily, transformer};
use crate::reader::declare::KeywordEnum;
use crate::schema::model::{MlpActivation, RotaryScaling, Transformer};
use data::TensorNaming;

/// A model as the library names it.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfiguration {
    pub family: ModelFamily,
    /// The content of `config.json`.
    pub fields: Value,
}

impl HfConfiguration {
    /// The names of the model's tensors in checkpoints.
    pub fn naming(&self) -> TensorNaming {
        match self.family {
            ModelFamily::Gpt2 => TensorNaming::Gpt2,
            ModelFamily::Llama
            | ModelFamily::Mistral
            | ModelFamily::Qwen2
            | ModelFamily::Qwen3
            | ModelFamily::Gemma2 => TensorNaming::Llama,
        }
    }
}

impl Transformer {
    /// The configuration of the first family whose model this is: read back, it is equal. `None` if no family has it.
    pub fn hf_configuration(&self) -> Option<HfConfiguration> {
        let model = Transformer { weights: None, ..self.clone() };
        ModelFamily::ALL.iter().find_map(|&family| {
            let mut fields = fields(&model, family)?;
            fields.insert("model_type".to_owned(), family.keyword().into());
            fields.insert("architectures".to_owned(), json!([family.class()]));
            let fields = Value::Object(fields);
            let read = ConfigFields::parse(&fields.to_string()).ok()?;
            let hf = Hf { config: "config.json".into(), context: None, dropout: true, weights: None };
            let is_equal = transformer(&read, &hf).is_ok_and(|read| read == model);
            is_equal.then_some(HfConfiguration { family, fields })
        })
    }
}

/// The fields that describe a model as one of a family, whether or not it is one.
fn fields(model: &Transformer, family: ModelFamily) -> Option<Map<String, Value>> {
    let function = match model.activation {
        MlpActivation::Plain(function) | MlpActivation::Gate(function) => function,
    };
    let activation = function.definition().hugging_face.first()?;
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
        ModelFamily::Llama
        | ModelFamily::Mistral
        | ModelFamily::Qwen2
        | ModelFamily::Qwen3
        | ModelFamily::Gemma2 => {
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
                "rope_scaling": model.rotary.scaling.as_ref().map(scaling),
            });
            let more = match family {
                ModelFamily::Mistral => json!({ "sliding_window": model.window }),
                ModelFamily::Qwen2 | ModelFamily::Qwen3 if model.window.is_some() => json!({
                    "use_sliding_window": true,
                    "sliding_window": model.window,
                    "layer_types": layer_types(model),
                }),
                ModelFamily::Gemma2 => json!({
                    "hidden_activation": activation,
                    "sliding_window": model.window,
                    "layer_types": layer_types(model),
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

/// Whether each block attends to the window or to the full context.
fn layer_types(model: &Transformer) -> Vec<&'static str> {
    let word = |block| if model.window_of(block).is_some() { "sliding_attention" } else { "full_attention" };
    (0..model.layers).map(word).collect()
}

fn scaling(scaling: &RotaryScaling) -> Value {
    let &RotaryScaling { factor, low, high, original } = scaling;
    json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    })
}

#[cfg(test)]
mod tests {
    use super::super::configurations::{gemma2, gpt2, llama, with};
    use super::*;

    /// One configuration of each family.
    #[test]
    fn configurations_that_were_read_are_written_equal() {
        let qwen = json!({ "rope_scaling": null, "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 0 });
        let of = |family: ModelFamily| match family {
            ModelFamily::Gpt2 => gpt2(),
            ModelFamily::Llama => llama(),
            ModelFamily::Gemma2 => gemma2(),
            ModelFamily::Mistral => with(&llama(), &json!({ "rope_scaling": null, "sliding_window": 64 })),
            ModelFamily::Qwen2 | ModelFamily::Qwen3 => with(&llama(), &qwen),
        };
        for family in ModelFamily::ALL {
            let config = with(&of(*family), &json!({ "model_type": family.keyword() }));
            let read = |fields: &Value| {
                let hf = Hf { config: "config.json".into(), context: None, dropout: true, weights: None };
                transformer(&ConfigFields::parse(&fields.to_string()).unwrap(), &hf)
                    .unwrap_or_else(|error| panic!("{fields}: {error:?}"))
            };
            let model = read(&config);
            let written = model.hf_configuration().unwrap_or_else(|| panic!("{config} is not written"));
            assert_eq!(written.family, *family);
            assert_eq!(read(&written.fields), model, "{config}");
        }
    }

    #[test]
    fn models_of_no_family_are_not_written() {
        let model = Transformer { bias: false, ..Transformer::new(2, 32, 2, 16) };
        assert_eq!(model.hf_configuration(), None);
    }
}
