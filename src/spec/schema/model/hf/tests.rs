mod families;

use serde_json::{Value, json};

use super::configurations::{gemma2, gpt2, llama, with};
use super::*;
use crate::schema::model::{
    Dropout, Experts, MlpActivation, Norm, NormPlacement, QkNormOver, Rotary, SubLayers,
};
use ops::Activation;

fn hf() -> Hf {
    Hf { dropout: false, ..Hf::default() }
}

/// Without the family, which the configuration names.
fn described(config: &Value, hf: &Hf) -> Result<Described, Vec<ConfigError>> {
    let described = describe(&json::object(&config.to_string()).unwrap(), hf)?;
    Ok(Described { model: Transformer { family: None, ..described.model }, ..described })
}

/// The model, or the first error.
fn read(config: &Value, hf: &Hf) -> Result<Transformer, String> {
    described(config, hf).map(|described| described.model).map_err(|mut errors| errors.swap_remove(0).message)
}

/// The unknown fields.
fn unknown(config: &Value, hf: &Hf) -> Vec<String> {
    described(config, hf).unwrap().unknown
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
            ..Rotary::default()
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
    assert_eq!(seen(&qwen, first), Ok((Some(7), Some(3))));
    let irregular =
        json!({ "sliding_window": 7, "layer_types": types(["sliding", "full", "full", "sliding"]) });
    assert!(seen(&qwen, irregular).is_err());
    // Mistral ignores the list.
    let mistral = with(&qwen, &json!({ "model_type": "mistral" }));
    let listed = json!({ "sliding_window": 7, "layer_types": types(["full", "full", "full", "full"]) });
    assert_eq!(seen(&mistral, listed), Ok((Some(7), None)));
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
        (llama(), json!({ "model_type": null }), "`model_type` is missing"),
        (
            gpt2(),
            json!({ "scale_attn_by_inverse_layer_idx": true }),
            "`scale_attn_by_inverse_layer_idx` is true",
        ),
        (gpt2(), json!({ "activation_function": "quick_gelu" }), "`activation_function` is \"quick_gelu\""),
        (gpt2(), json!({ "n_embd": 7.5 }), "`n_embd` must be a whole number"),
        (gpt2(), json!({ "n_layer": null }), "`n_layer` must be a whole number from 1 to 16384, not null"),
        (gpt2(), json!({ "n_layer": 1 << 20 }), "`n_layer` must be a whole number from 1 to 16384"),
        (gpt2(), json!({ "initializer_range": "Infinity" }), "`initializer_range` must be a number above 0"),
        (gpt2(), json!({ "pruned_heads": { "0": [1] } }), "`pruned_heads` is"),
        (llama(), json!({ "attention_bias": true }), "`attention_bias` is true"),
        (llama(), json!({ "hidden_act": "quick_gelu" }), "`hidden_act` is \"quick_gelu\""),
        (llama(), json!({ "num_experts": 8 }), "`num_experts` stands for mixture-of-experts layers"),
        (llama(), json!({ "q_lora_rank": 8 }), "`q_lora_rank` stands for multi-head latent attention"),
        (llama(), json!({ "rope_scaling": { "type": "ntk" } }), "`rope_scaling.type` is \"ntk\""),
        (llama(), json!({ "rope_scaling": { "type": "linear" } }), "`rope_scaling.factor` is missing"),
        (
            llama(),
            json!({ "rope_scaling": { "type": "longrope", "short_factor": [1], "long_factor": [2] } }),
            "`rope_scaling.short_factor` must be a list of 32 numbers above 0",
        ),
        (llama(), json!({ "rope_scaling": { "rope_type": "llama3" } }), "`rope_scaling.factor` is missing"),
        (llama(), json!({ "partial_rotary_factor": 0.5 }), "`partial_rotary_factor` is 0.5"),
        (llama(), json!({ "rms_norm_eps": 0 }), "`rms_norm_eps` must be a number above 0"),
        (gemma2(), json!({ "use_bidirectional_attention": true }), "`use_bidirectional_attention` is true"),
        // Fields of which versions of the library use one or the other.
        (
            gemma2(),
            json!({ "model_type": "gemma", "hidden_activation": "silu" }),
            "`hidden_activation` is \"silu\"",
        ),
        (
            json!({ "num_layers": 2, "attention_types": [[["global"], 2]] }),
            json!({ "model_type": "gpt_neo", "attention_layers": ["global", "local"] }),
            "`attention_layers` is",
        ),
    ];
    for (config, changes, expected) in cases {
        let message = read(&with(&config, &changes), &hf()).expect_err(expected);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn all_errors_are_reported() {
    let changes = json!({
        "hidden_size": 7.5, "num_experts": 8, "rope_scaling": { "type": "linear", "factor": "NaN" }, "hidden_act": "step",
    });
    let errors = described(&with(&llama(), &changes), &hf()).unwrap_err();
    let mut fields: Vec<&str> = errors.iter().filter_map(|error| error.field.as_deref()).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["factor", "hidden_act", "hidden_size", "num_experts"]);
}

#[test]
fn parameters_are_drawn_with_the_configured_deviation_unless_they_are_stored() {
    let config = with(&gpt2(), &json!({ "initializer_range": 0.1 }));
    assert_eq!(read(&config, &hf()).unwrap().initial_deviation, 0.1);
    let stored = Hf { weights: Some("model.safetensors".into()), ..hf() };
    assert_eq!(read(&config, &stored).unwrap().initial_deviation, 0.02);
}

#[test]
fn fields_of_any_version_of_the_library_are_known() {
    let old = json!({
        "finetuning_task": null, "num_labels": 1, "pruned_heads": {}, "torchscript": false, "use_bfloat16": false,
        "output_past": true, "tf_legacy_loss": false, "tie_encoder_decoder": false, "top_k": 50, "length_penalty": 1.0,
        "bad_words_ids": null, "_flash_attn_2_enabled": true, "xla_device": null, "max_new_tokens": 20, "_num_labels": 1,
    });
    for config in [gpt2(), llama(), gemma2()] {
        assert_eq!(unknown(&with(&config, &old), &hf()), Vec::<String>::new());
    }
    let own = json!({ "sliding_window_size": 4096 });
    assert_eq!(unknown(&with(&gemma2(), &own), &hf()), Vec::<String>::new());
}

#[test]
fn fields_of_other_programs_are_unknown_unless_they_are_ignored() {
    let config = with(&llama(), &json!({ "is_llama_config": true, "sliding_window": 4096 }));
    let config =
        with(&config, &json!({ "rope_parameters": null, "rope_scaling": { "type": "default", "x": 1 } }));
    assert_eq!(unknown(&config, &hf()), ["rope_scaling.x", "is_llama_config", "sliding_window"]);
    let ignoring = Hf { ignore: ["sliding_window", "rope_scaling.x"].map(str::to_owned).to_vec(), ..hf() };
    assert_eq!(unknown(&config, &ignoring), ["is_llama_config"]);
    let unneeded = |hf: &Hf| described(&config, hf).unwrap().unneeded;
    assert_eq!(unneeded(&ignoring), Vec::<String>::new());
    let more = ["sliding_window", "unsloth_version", "quantization_config"].map(str::to_owned);
    let more = Hf { ignore: more.to_vec(), ..hf() };
    assert_eq!(unneeded(&more), ["unsloth_version", "quantization_config"]);
    let known = Hf { ignore: vec!["rope_theta".to_owned()], ..hf() };
    assert_eq!(read(&llama(), &known).unwrap_err(), "`ignore` lists `rope_theta`, which runner reads");
    let experts = Hf { ignore: vec!["num_experts".to_owned()], ..hf() };
    assert!(read(&with(&llama(), &json!({ "num_experts": 8 })), &experts).is_err());
}

#[test]
fn families_are_found_without_a_model_type() {
    let without = |config: Value, changes: Value| {
        let mut config = with(&config, &changes);
        config.as_object_mut().unwrap().remove("model_type");
        read(&config, &hf())
    };
    assert_eq!(without(gpt2(), json!({})), read(&gpt2(), &hf()));
    let named = without(llama(), json!({ "architectures": ["LLaMAForCausalLM"] }));
    assert_eq!(named, read(&llama(), &hf()));
    let named = without(llama(), json!({ "architectures": ["GPT2DoubleHeadsModel"] })).unwrap();
    assert_eq!(named.positions, crate::Positions::Learned);
}

#[test]
fn quantized_weights_lead_to_a_quantized_base() {
    let help = |table: Value, hf: &Hf| {
        let described = described(&with(&llama(), &json!({ "quantization_config": table })), hf).unwrap();
        described.quantized.map(|error| (error.message, error.help))
    };
    let (message, fp8) = help(json!({ "quant_method": "fp8" }), &hf()).unwrap();
    assert!(message.starts_with("`quantization_config` (fp8, 8 bits)"), "{message}");
    assert!(fp8.contains("base = \"int8\""), "{fp8}");
    for table in [json!({ "load_in_4bit": true }), json!({ "quant_method": "gptq", "bits": 4 })] {
        assert!(help(table, &hf()).unwrap().1.contains("base = \"nf4\""));
    }
    let ignoring = Hf { ignore: vec!["quantization_config".to_owned()], ..hf() };
    assert_eq!(help(json!({ "quant_method": "fp8" }), &ignoring), None);
}

/// Frequencies and factors of the library's own modules (`tests/reference/rotary.py`).
#[test]
fn scaled_rotations_equal_the_library() {
    let cases: Vec<Value> =
        serde_json::from_str(include_str!("../../../../../tests/reference/vectors/rotary.json")).unwrap();
    for case in cases {
        let length = case["length"].as_u64().unwrap() as usize;
        let config = &case["config"];
        let model = read(config, &Hf { context: Some(length), ..hf() }).unwrap();
        let found = model.rotary.frequencies().of_channels(model.rotated_channels());
        let expected: Vec<f64> =
            case["inverse_frequencies"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
        assert_eq!(found.len(), expected.len(), "{config}");
        for (found, expected) in found.iter().zip(expected) {
            // The library computes them in f32.
            assert!(
                (f64::from(*found) / expected - 1.0).abs() < 1e-6,
                "{config} at {length}: {found} {expected}"
            );
        }
        let factor = case["attention_factor"].as_f64().unwrap();
        let expected = factor * factor / (model.head_dim as f64).sqrt();
        let scale = model.attention_scale.unwrap_or((model.head_dim as f64).sqrt().recip());
        assert!((scale / expected - 1.0).abs() < 1e-12, "{config}");
    }
}

#[test]
fn unsupported_families_are_refused_with_the_missing_part() {
    let cases = [
        (json!({ "model_type": "bloom" }), "ALiBi position biases"),
        (json!({ "model_type": "deepseek_v3" }), "multi-head latent attention"),
        (json!({ "model_type": "qwen2_moe" }), "shared experts"),
        (json!({ "model_type": "jamba" }), "state-space, recurrent or linear-attention layers"),
        (json!({ "model_type": "t5" }), "an encoder with cross-attention"),
        (json!({ "model_type": "bert" }), "bidirectional encoder layers"),
        (json!({ "model_type": "new_kind", "n_shared_experts": 1 }), "shared experts"),
        (json!({ "model_type": "new_kind", "alibi": true }), "ALiBi position biases"),
        (json!({ "model_type": "new_kind", "is_encoder_decoder": true }), "an encoder with cross-attention"),
    ];
    for (config, part) in cases {
        let [error] = &described(&config, &hf()).unwrap_err()[..] else { panic!("{config} has one error") };
        assert!(error.message.contains(part), "{}", error.message);
        assert!(!error.help.contains("[model.transformer]"), "{}", error.help);
    }
    let [error] = &described(&json!({ "model_type": "internlm2" }), &hf()).unwrap_err()[..] else { panic!() };
    assert!(error.help.contains("[model.transformer]"), "{}", error.help);
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
    let sizes = |family: &str| {
        let model = read(&json!({ "model_type": family }), &hf()).unwrap();
        let Transformer { layers, d_model, heads, kv_heads, head_dim, d_ff, vocabulary, context, .. } = model;
        [layers, d_model, heads, kv_heads, head_dim, d_ff, vocabulary, context]
    };
    assert_eq!(sizes("gpt2"), [12, 768, 12, 12, 64, 3072, 50_257, 1024]);
    assert_eq!(sizes("llama"), [32, 4096, 32, 32, 128, 11_008, 32_000, 2048]);
    assert_eq!(sizes("mistral"), [32, 4096, 32, 8, 128, 14_336, 32_000, 131_072]);
    assert_eq!(sizes("qwen2"), [32, 4096, 32, 32, 128, 22_016, 151_936, 32_768]);
    assert_eq!(sizes("gemma"), [28, 3072, 16, 16, 256, 24_576, 256_000, 8192]);
    assert_eq!(sizes("phi3"), [32, 3072, 32, 32, 96, 8192, 32_064, 4096]);
    assert_eq!(sizes("starcoder2"), [30, 3072, 24, 2, 128, 12_288, 49_152, 4096]);
    assert_eq!(sizes("gemma3_text"), [26, 2304, 8, 4, 256, 9216, 262_208, 131_072]);
    assert_eq!(sizes("smollm3"), [36, 2048, 16, 4, 128, 11_008, 128_256, 32_768]);
    assert_eq!(sizes("granite"), [32, 4096, 32, 32, 128, 11_008, 32_000, 2048]);
    assert_eq!(sizes("gpt_neo"), [24, 2048, 16, 16, 128, 8192, 50_257, 2048]);
    let deviation = |family: &str| read(&json!({ "model_type": family }), &hf()).unwrap().initial_deviation;
    let few = json!({ "model_type": "mistral", "hidden_size": 64, "num_attention_heads": 4 });
    assert_eq!(read(&few, &hf()).unwrap().kv_heads, 4, "8, the default, does not divide 4");
    assert_eq!((deviation("llama"), deviation("starcoder2")), (0.02, 0.018_042));
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
