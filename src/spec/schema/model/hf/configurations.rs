//! Published configurations, for tests.

use serde_json::{Value, json};

/// A configuration with changed fields; null stands for a missing field.
pub(crate) fn with(config: &Value, changes: &Value) -> Value {
    let mut config = config.clone();
    for (field, value) in changes.as_object().unwrap() {
        config[field] = value.clone();
    }
    config
}

pub(crate) fn gpt2() -> Value {
    json!({
        "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1,
        "bos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_embd": 768,
        "n_head": 12, "n_layer": 12, "n_positions": 1024, "summary_first_dropout": 0.1, "vocab_size": 50257,
    })
}

pub(crate) fn llama() -> Value {
    json!({
        "model_type": "llama", "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 2048,
        "head_dim": 64, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "vocab_size": 128256,
    })
}

pub(crate) fn gemma2() -> Value {
    json!({
        "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh", "hidden_size": 2304,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "sliding_window": 4096, "vocab_size": 256000, "cache_implementation": "hybrid",
    })
}
