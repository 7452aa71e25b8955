//! Parameter counts of published models.

use serde_json::json;

use configurations::{gemma2, gpt2, llama, with};
use testing::{changed, small};

#[path = "../../../src/spec/schema/model/hf/configurations.rs"]
mod configurations;

/// Parameter counts of models built from their configurations equal the published ones.
#[test]
fn models_have_published_parameter_counts() {
    let qwen2 = json!({
        "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "head_dim": null,
        "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151_936, "rope_scaling": null,
    });
    let qwen3 = json!({
        "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "head_dim": 128,
        "num_key_value_heads": 8, "intermediate_size": 3072, "vocab_size": 151_936, "rope_scaling": null,
    });
    let gemma = json!({
        "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
    });
    let phi4 = json!({
        "model_type": "phi3", "vocab_size": 100_352, "hidden_size": 5120, "intermediate_size": 17_920,
        "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10,
    });
    let gpt_neo = json!({
        "model_type": "gpt_neo", "hidden_size": 768, "num_layers": 12, "num_heads": 12,
        "attention_types": [[["global", "local"], 6]],
    });
    let gemma3 = json!({
        "model_type": "gemma3_text", "vocab_size": 262_144, "hidden_size": 1152, "intermediate_size": 6912,
        "num_attention_heads": 4, "num_key_value_heads": 1,
    });
    let granite = json!({
        "model_type": "granite", "vocab_size": 49_155, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "tie_word_embeddings": true, "residual_multiplier": 0.22,
    });
    let olmo2 = json!({
        "model_type": "olmo2", "vocab_size": 100_352, "hidden_size": 5120, "intermediate_size": 13_824,
        "num_hidden_layers": 40, "num_attention_heads": 40,
    });
    let olmo3 = json!({
        "model_type": "olmo3", "vocab_size": 100_278, "hidden_size": 5120, "intermediate_size": 27_648,
        "num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
    });
    let falcon_40b = json!({
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
        "num_kv_heads": 8, "new_decoder_architecture": true,
    });
    let falcon_11b = json!({
        "model_type": "falcon", "hidden_size": 4096, "ffn_hidden_size": 16_384, "num_hidden_layers": 60,
        "num_attention_heads": 32, "num_kv_heads": 8, "num_ln_in_parallel_attn": 1, "new_decoder_architecture": true,
        "tie_word_embeddings": false,
    });
    let cases = [
        ("GPT-NeoX 20B", json!({ "model_type": "gpt_neox" }), 20_554_567_680),
        ("Phi-1.5", json!({ "model_type": "phi" }), 1_418_270_720),
        ("Falcon 7B", json!({ "model_type": "falcon" }), 6_921_720_704),
        ("Falcon 40B", falcon_40b, 41_303_293_952),
        ("Falcon 2 11B", falcon_11b, 11_102_822_400),
        ("OLMo 2 13B", olmo2, 13_716_198_400),
        ("OLMo 3 32B", olmo3, 32_233_522_176),
        ("Gemma 3 1B", gemma3, 999_885_952),
        ("SmolLM3 3B", json!({ "model_type": "smollm3" }), 3_075_098_624),
        ("Granite 3.1 2B", granite, 2_533_531_648),
        // The next five as the library counts its own models.
        ("Gemma 2B", gemma, 2_506_172_416),
        ("Phi-3 mini", json!({ "model_type": "phi3" }), 3_821_079_552),
        ("Phi-4", phi4, 14_659_507_200),
        ("StarCoder2 3B", json!({ "model_type": "starcoder2" }), 3_030_371_328),
        ("GPT-Neo 125M", gpt_neo, 125_198_592),
        ("GPT-2", gpt2(), 124_439_808),
        ("Llama 3.2 1B", llama(), 1_235_814_400),
        ("Gemma 2 2B", gemma2(), 2_614_341_888),
        ("Qwen 2.5 0.5B", with(&llama(), &qwen2), 494_032_768),
        ("Qwen 3 0.6B", with(&llama(), &qwen3), 596_049_920),
    ];
    for (name, config, expected) in cases {
        // The count of GPT-2 includes its position embeddings.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut run: toml::Table = small().to_toml("run", "plain").parse().unwrap();
        let hf = toml::Table::from_iter([("config".to_owned(), file.to_str().unwrap().into())]);
        run.insert("model".to_owned(), toml::Table::from_iter([("hf".to_owned(), hf.into())]).into());
        let model = changed(&run.to_string(), &[]).unwrap().model;
        assert_eq!(graph::build(&model, 1).parameters(), expected, "{name}");
    }
}
