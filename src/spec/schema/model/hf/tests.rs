use serde_json::{Value, json};

use super::configurations::{gemma2, gpt2, llama, with};
use super::*;
use crate::schema::model::{Dropout, MlpActivation, Norm, NormPlacement, Rotary};
use ops::Activation;

fn hf() -> Hf {
    Hf { config: "config.json".into(), context: None, dropout: false, weights: None }
}

fn read(config: &Value, hf: &Hf) -> Result<Transformer, String> {
    let fields = ConfigFields::parse(&config.to_string()).unwrap();
    transformer(&fields, hf).map_err(|mistake| mistake.message)
}

#[test]
fn gpt2_equals_the_default_transformer() {
    let expected = Transformer { vocabulary: 50257, ..Transformer::new(12, 768, 12, 1024) };
    assert_eq!(read(&gpt2(), &hf()), Ok(expected.clone()));
    let short = Hf { context: Some(256), ..hf() };
    assert_eq!(read(&gpt2(), &short), Ok(Transformer { context: 256, ..expected }));
    let long = Hf { context: Some(1025), ..hf() };
    assert!(read(&gpt2(), &long).unwrap_err().contains("`n_positions` = 1024"));
}

#[test]
fn llama_3_is_read_in_the_old_and_the_new_format() {
    let expected = Transformer {
        vocabulary: 128_256,
        kv_heads: 8,
        d_ff: 8192,
        activation: MlpActivation::Gate(Activation::Silu),
        norm: Norm::Rms,
        positions: crate::Positions::Rotary,
        rotary: Rotary {
            base: 500_000.0,
            scaling: Some(crate::RotaryScaling { factor: 32.0, low: 1.0, high: 4.0, original: 8192 }),
        },
        bias: false,
        qkv_bias: false,
        ..Transformer::new(16, 2048, 32, 131_072)
    };
    assert_eq!(read(&llama(), &hf()), Ok(expected.clone()));
    let mut parameters = llama()["rope_scaling"].clone();
    parameters["rope_theta"] = json!(500_000.0);
    let newer = json!({ "rope_scaling": null, "rope_theta": null, "rope_parameters": parameters });
    assert_eq!(read(&with(&llama(), &newer), &hf()), Ok(expected));
}

#[test]
fn gemma_2_has_its_caps_scales_and_windows() {
    let model = read(&gemma2(), &Hf { context: Some(4096), ..hf() }).unwrap();
    assert_eq!(model.embedding_scale, Some(48.0));
    assert_eq!((model.window, model.global_every), (Some(4096), Some(2)));
    assert_eq!((model.attention_scale, model.attention_softcap), (Some(0.0625), Some(50.0)));
    assert_eq!((model.norm, model.norm_placement), (Norm::RmsZeroCentered, NormPlacement::Sandwich));
    assert_eq!(
        (model.activation, model.logit_softcap),
        (MlpActivation::Gate(Activation::GeluTanh), Some(30.0))
    );
    assert!(model.tied && !model.bias && !model.qkv_bias && !model.qk_norm);
    let uncapped = with(&gemma2(), &json!({ "attn_logit_softcapping": null }));
    assert_eq!(read(&uncapped, &hf()).unwrap().attention_softcap, None);
}

#[test]
fn windows_follow_the_family() {
    let seen = |config: &Value, changes: Value| {
        read(&with(config, &changes), &hf()).map(|model| (model.window, model.global_every))
    };
    let base = |family: &str| with(&llama(), &json!({ "model_type": family, "num_hidden_layers": 4 }));
    // The default of Mistral.
    assert_eq!(seen(&base("mistral"), json!({})), Ok((Some(4096), None)));
    assert_eq!(seen(&base("mistral"), json!({ "sliding_window": null })), Ok((None, None)));
    assert_eq!(seen(&base("mistral"), json!({ "sliding_window": 7 })), Ok((Some(7), None)));
    let qwen = base("qwen2");
    assert_eq!(seen(&qwen, json!({ "sliding_window": 7, "max_window_layers": 0 })), Ok((None, None)));
    let all = json!({ "sliding_window": 7, "use_sliding_window": true, "max_window_layers": 0 });
    assert_eq!(seen(&qwen, all.clone()), Ok((Some(7), None)));
    let refused = seen(&qwen, with(&all, &json!({ "max_window_layers": 2 }))).unwrap_err();
    assert!(refused.starts_with("`max_window_layers` is 2"), "{refused}");
    let types = |words: [&str; 4]| words.map(|word| format!("{word}_attention"));
    let alternating =
        json!({ "sliding_window": 7, "layer_types": types(["sliding", "full", "sliding", "full"]) });
    assert_eq!(seen(&qwen, alternating), Ok((Some(7), Some(2))));
    let last =
        json!({ "sliding_window": 7, "layer_types": types(["sliding", "sliding", "sliding", "full"]) });
    assert_eq!(seen(&qwen, last), Ok((Some(7), Some(4))));
    let first = json!({ "sliding_window": 7, "layer_types": types(["full", "sliding", "sliding", "full"]) });
    assert!(seen(&qwen, first).is_err());
    assert!(seen(&qwen, json!({ "layer_types": ["full_attention"] })).is_err());
}

#[test]
fn qwen_has_its_biases_and_norms() {
    let of = |family: &str| read(&with(&llama(), &json!({ "model_type": family })), &hf()).unwrap();
    assert!(of("qwen2").qkv_bias && !of("qwen2").bias && !of("qwen2").qk_norm);
    assert!(!of("qwen3").qkv_bias && of("qwen3").qk_norm);
}

#[test]
fn unsupported_fields_and_values_are_errors() {
    let cases = [
        (gpt2(), json!({ "model_type": "t5" }), "`model_type` is \"t5\""),
        (gpt2(), json!({ "model_type": null }), "`model_type` is missing"),
        (
            gpt2(),
            json!({ "scale_attn_by_inverse_layer_idx": true }),
            "`scale_attn_by_inverse_layer_idx` is true",
        ),
        (gpt2(), json!({ "activation_function": "quick_gelu" }), "`activation_function` is \"quick_gelu\""),
        (gpt2(), json!({ "n_embd": 7.5 }), "`n_embd` must be a whole number"),
        (gpt2(), json!({ "n_layer": null }), "`n_layer` is missing"),
        (gpt2(), json!({ "n_layer": 1 << 20 }), "`n_layer` must be a whole number from 1 to 16384"),
        (gpt2(), json!({ "initializer_range": 0.1 }), "`initializer_range` must be 0.02"),
        (llama(), json!({ "attention_bias": true }), "`attention_bias` is true"),
        (llama(), json!({ "hidden_act": "quick_gelu" }), "`hidden_act` is \"quick_gelu\""),
        (llama(), json!({ "sliding_window": 4096 }), "`sliding_window` is an unknown field of llama"),
        (llama(), json!({ "num_experts": 8, "moe": 1 }), "`moe`, `num_experts` are unknown fields of llama"),
        (
            llama(),
            json!({ "quantization_config": { "bits": 4 } }),
            "`quantization_config` is an unknown field",
        ),
        (
            llama(),
            json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }),
            "`rope_scaling.type` is \"linear\"",
        ),
        (llama(), json!({ "rope_scaling": { "rope_type": "llama3" } }), "`rope_scaling.factor` is missing"),
        (
            llama(),
            json!({ "rope_parameters": { "rope_type": "default", "x": 1 } }),
            "`rope_parameters.x` is an unknown field",
        ),
        (llama(), json!({ "partial_rotary_factor": 0.5 }), "`partial_rotary_factor` is 0.5"),
        (llama(), json!({ "rms_norm_eps": 0 }), "`rms_norm_eps` must be a number above 0"),
        (gemma2(), json!({ "use_bidirectional_attention": true }), "`use_bidirectional_attention` is true"),
    ];
    for (config, changes, expected) in cases {
        let message = read(&with(&config, &changes), &hf()).expect_err(expected);
        assert!(message.starts_with(expected), "{message}");
    }
    let stored = Hf { weights: Some("model.safetensors".into()), ..hf() };
    read(&with(&gpt2(), &json!({ "initializer_range": 0.1 })), &stored).unwrap();
}

/// As in the library's configuration classes.
#[test]
fn missing_fields_have_the_library_defaults() {
    let without = |config: &Value, family: &str| {
        let mut config =
            with(config, &json!({ "model_type": family, "num_attention_heads": 64, "hidden_size": 4096 }));
        for field in ["num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "hidden_act"]
        {
            config.as_object_mut().unwrap().remove(field);
        }
        let model = read(&config, &hf()).unwrap();
        (model.kv_heads, model.head_dim, model.norm_epsilon, model.tied)
    };
    assert_eq!(without(&llama(), "llama"), (64, 64, 1e-6, false));
    assert_eq!(without(&llama(), "mistral"), (8, 64, 1e-6, false));
    assert_eq!(without(&llama(), "qwen2"), (32, 64, 1e-6, false));
    assert_eq!(without(&llama(), "qwen3"), (32, 128, 1e-6, false));
    assert_eq!(without(&gemma2(), "gemma2"), (4, 256, 1e-6, true));
}

#[test]
fn dropout_is_read_as_the_library_applies_it() {
    let dropping = Hf { dropout: true, ..hf() };
    let config = with(&gpt2(), &json!({ "embd_pdrop": 0.2, "resid_pdrop": 0.3 }));
    let expected = Dropout { embedding: 0.2, attention: 0.1, residual: 0.3 };
    assert_eq!(read(&config, &dropping).unwrap().dropout, expected);
    assert_eq!(read(&config, &hf()).unwrap().dropout, Dropout::default());
    let mut unsaid = gpt2();
    for field in ["embd_pdrop", "attn_pdrop", "resid_pdrop"] {
        unsaid.as_object_mut().unwrap().remove(field);
    }
    let all = Dropout { embedding: 0.1, attention: 0.1, residual: 0.1 };
    assert_eq!(read(&unsaid, &dropping).unwrap().dropout, all);
    let config = with(&llama(), &json!({ "attention_dropout": 0.25 }));
    let expected = Dropout { attention: 0.25, ..Dropout::default() };
    assert_eq!(read(&config, &dropping).unwrap().dropout, expected);
    let wrong = with(&config, &json!({ "attention_dropout": 1.0 }));
    assert!(read(&wrong, &hf()).is_ok(), "disabled dropout is not checked");
    let wrong = read(&wrong, &dropping).unwrap_err();
    assert_eq!(wrong, "`attention_dropout` must be a probability from 0 to 0.9999, not 1.0");
}
