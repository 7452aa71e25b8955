//! What single families have beside the shared block.

use super::*;

#[test]
fn gpt_neo_alternates_windows_and_does_not_scale_scores() {
    let config =
        json!({ "model_type": "gpt_neo", "num_layers": 4, "attention_types": [[["global", "local"], 2]] });
    let model = read(&config, &hf()).unwrap();
    let windows: Vec<Option<usize>> = (0..4).map(|block| model.window_of(block)).collect();
    assert_eq!(windows, [None, Some(256), None, Some(256)]);
    assert_eq!((model.attention_scale, model.qkv_bias, model.bias), (Some(1.0), false, true));
    let all = with(&config, &json!({ "attention_types": [[["global"], 4]] }));
    assert_eq!(read(&all, &hf()).unwrap().window, None);
    let short = with(&config, &json!({ "attention_types": [[["global", "local"], 1]] }));
    assert!(read(&short, &hf()).unwrap_err().starts_with("`attention_types` is"));
}

#[test]
fn gemma_1_takes_gelu_for_its_approximation() {
    let config = |changes| {
        read(&with(&json!({ "model_type": "gemma", "num_hidden_layers": 2 }), &changes), &hf()).unwrap()
    };
    let approximate = MlpActivation::Gate(Activation::GeluTanh);
    let (plain, gelu) = (config(json!({})), config(json!({ "hidden_act": "gelu" })));
    assert_eq!((plain.activation, gelu.activation), (approximate, approximate));
    assert_eq!((gelu.norm, gelu.norm_placement), (Norm::RmsZeroCentered, NormPlacement::Pre));
    assert!(gelu.tied && gelu.embedding_scale == Some(3072f64.sqrt()) && gelu.kv_heads == 16);
}

#[test]
fn gemma_3_has_a_base_for_each_kind_of_attention() {
    let config = |changes| read(&with(&json!({ "model_type": "gemma3_text" }), &changes), &hf()).unwrap();
    let plain = config(json!({}));
    assert_eq!((plain.global_every, plain.qk_norm), (Some(6), true));
    assert_eq!((plain.attention_softcap, plain.logit_softcap), (None, None));
    let bases = |model: &Transformer| [0, 5].map(|block| model.rotation_of(block).unwrap().base);
    assert_eq!(bases(&plain), [1e4, 1e6]);
    // Version 4's fields, and version 5's.
    let older = json!({ "rope_theta": 2e6, "rope_local_base_freq": 2e4, "sliding_window_pattern": 3,
        "rope_scaling": { "rope_type": "linear", "factor": 8.0 } });
    let layer = |number: usize| if number.is_multiple_of(3) { "full_attention" } else { "sliding_attention" };
    let newer = json!({ "_sliding_window_pattern": 6, "layer_types": (1..=26).map(layer).collect::<Vec<_>>(),
        "rope_parameters": {
        "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 2e6 },
        "sliding_attention": { "rope_type": "default", "rope_theta": 2e4 } } });
    let (older, newer) = (config(older), config(newer));
    assert_eq!(older, newer);
    assert_eq!((bases(&older), older.global_every), ([2e4, 2e6], Some(3)));
    let scaled = |block| older.rotation_of(block).unwrap().divisors;
    assert!(scaled(0).is_empty() && scaled(5) == vec![8.0; 128]);
}

#[test]
fn smollm_3_skips_rotations() {
    let config =
        |changes| read(&with(&json!({ "model_type": "smollm3", "num_hidden_layers": 4 }), &changes), &hf());
    let skipped = |changes| config(changes).unwrap().rotary.skip_every;
    assert_eq!(skipped(json!({})), Some(4));
    assert_eq!(skipped(json!({ "no_rope_layer_interval": 3 })), Some(3));
    assert_eq!(skipped(json!({ "no_rope_layer_interval": 5 })), None);
    assert_eq!(skipped(json!({ "no_rope_layers": [1, 0, 1, 0] })), Some(2));
    let sliding = config(json!({ "layer_types": vec!["sliding_attention"; 4] })).unwrap_err();
    assert!(sliding.starts_with("`layer_types` is"), "{sliding}");
    for irregular in [json!([1, 0, 0, 1]), json!([0, 0, 0, 0])] {
        let error = config(json!({ "no_rope_layers": irregular })).unwrap_err();
        assert!(error.starts_with("`no_rope_layers` is"), "{error}");
    }
    let short = config(json!({ "no_rope_layers": [1] })).unwrap_err();
    assert!(short.starts_with("`no_rope_layers` must be a list of 0 and 1, one for each layer"), "{short}");
}

#[test]
fn granite_has_multipliers() {
    let config = json!({ "model_type": "granite", "embedding_multiplier": 12, "attention_multiplier": 0.015_625,
        "residual_multiplier": 0.22, "logits_scaling": 8.0 });
    let model = read(&config, &hf()).unwrap();
    let scales = [model.embedding_scale, model.attention_scale, model.residual_scale, model.logit_scale];
    assert_eq!(scales, [12.0, 0.015_625, 0.22, 0.125].map(Some));
    let plain = read(&json!({ "model_type": "granite" }), &hf()).unwrap();
    assert_eq!([plain.embedding_scale, plain.residual_scale, plain.logit_scale], [None; 3]);
    assert_eq!(plain.attention_scale, Some(1.0), "not one over the square root of a head's channels");
}

#[test]
fn olmo_norms_outputs_and_all_heads() {
    let model = read(&json!({ "model_type": "olmo2" }), &hf()).unwrap();
    assert_eq!((model.norm, model.norm_placement), (Norm::Rms, NormPlacement::Output));
    assert_eq!((model.qk_norm, model.qk_norm_over), (true, QkNormOver::AllHeads));
    assert_eq!(
        (model.norm_epsilon, model.rotary.base, model.tied, model.window),
        (1e-5, 10_000.0, false, None)
    );
    let refused = read(&json!({ "model_type": "olmo2", "attention_bias": true }), &hf()).unwrap_err();
    assert!(refused.starts_with("`attention_bias` is true"), "{refused}");
}

/// Blocks with a window rotate without scaling, and have scores without its factor.
#[test]
fn olmo_3_scales_rotations_of_the_full_context_alone() {
    let plain = read(&json!({ "model_type": "olmo3" }), &hf()).unwrap();
    assert_eq!((plain.window, plain.global_every), (Some(4096), Some(4)));
    assert_eq!((plain.rotary.base, plain.rotary.window_base), (5e5, Some(5e5)));
    assert_eq!([plain.attention_scale, plain.window_attention_scale], [None; 2]);
    let yarn = json!({ "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
        "attention_factor": 1.2 });
    let older = json!({ "model_type": "olmo3", "rope_theta": 500_000, "rope_scaling": yarn });
    let scaled = read(&older, &hf()).unwrap();
    let scale = 128_f64.sqrt().recip();
    assert_eq!(scaled.window_attention_scale, Some(scale));
    assert!((scaled.attention_scale.unwrap() / scale - 1.44).abs() < 1e-9);
    assert_eq!((scaled.rotary.divisors.len(), scaled.rotary.window_base), (64, Some(5e5)));
    let tables = json!({ "model_type": "olmo3", "rope_parameters": {
        "full_attention": with(&yarn, &json!({ "rope_theta": 1e6 })),
        "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 } } });
    let newer = read(&tables, &hf()).unwrap();
    assert_eq!((newer.rotary.base, newer.rotary.window_base), (1e6, Some(1e4)));
    // The library merges the two.
    let both = read(&with(&tables, &json!({ "rope_scaling": yarn })), &hf()).unwrap_err();
    assert!(both.starts_with("`rope_scaling` is {"), "{both}");
    let other = read(&json!({ "model_type": "olmo3", "rope_theta": 1e4 }), &hf()).unwrap_err();
    assert!(other.starts_with("`rope_theta` is 1"), "{other}");
}

#[test]
fn gpt_neox_rotates_a_part_and_has_parallel_parts() {
    let of = |changes: Value| read(&with(&json!({ "model_type": "gpt_neox" }), &changes), &hf());
    let model = of(json!({})).unwrap();
    assert_eq!(
        (model.sub_layers, model.head_dim, model.rotary.channels),
        (SubLayers::Parallel, 96, Some(24))
    );
    assert_eq!((model.rotary.base, model.tied, model.head_bias), (10_000.0, false, false));
    let older =
        of(json!({ "rotary_pct": 1.0, "rotary_emb_base": 500, "use_parallel_residual": false })).unwrap();
    assert_eq!((older.sub_layers, older.rotary.channels), (SubLayers::Sequential, None));
    assert_eq!(older.rotary.base, 500.0);
    let table =
        json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 300.0, "partial_rotary_factor": 0.5 });
    let newer = of(json!({ "rope_parameters": table })).unwrap();
    assert_eq!(
        (newer.rotary.base, newer.rotary.channels, newer.rotary.divisors.len()),
        (300.0, Some(48), 24)
    );
    let dropping = Hf { dropout: true, ..hf() };
    let rates = json!({ "model_type": "gpt_neox", "hidden_dropout": 0.1, "attention_dropout": 0.2 });
    let expected = Dropout { embedding: 0.1, attention: 0.2, residual: 0.1 };
    assert_eq!(read(&rates, &dropping).unwrap().dropout, expected);
    for (changes, expected) in [
        (json!({ "attention_bias": false }), "`attention_bias` is false"),
        (json!({ "rope_theta": 500.0 }), "`rope_theta` is 500.0"),
        (json!({ "rotary_pct": 0.04 }), "0.04 of 96 channels per head is 3"),
        (json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 } }), "`rope_scaling.type` is \"yarn\""),
    ] {
        let found = of(changes).unwrap_err();
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn phi_shares_a_norm_and_has_a_bias_of_the_head() {
    let of = |changes: Value| read(&with(&json!({ "model_type": "phi" }), &changes), &hf());
    let model = of(json!({})).unwrap();
    assert_eq!((model.sub_layers, model.head_bias), (SubLayers::ParallelSharedNorm, true));
    assert_eq!((model.norm, model.bias, model.qkv_bias, model.tied), (Norm::Layer, true, true, false));
    assert_eq!((model.head_dim, model.rotary.channels, model.kv_heads), (64, Some(32), 32));
    let phi2 = of(json!({ "hidden_size": 2560, "partial_rotary_factor": 0.4 })).unwrap();
    assert_eq!((phi2.head_dim, phi2.rotary.channels), (80, Some(32)));
    let refused = of(json!({ "qk_layernorm": true })).unwrap_err();
    assert!(refused.starts_with("`qk_layernorm` is true"), "{refused}");
}

#[test]
fn falcon_has_its_kinds_of_blocks() {
    let of = |changes: Value| read(&with(&json!({ "model_type": "falcon" }), &changes), &hf());
    let parts = |changes: Value| of(changes).map(|model| (model.sub_layers, model.kv_heads));
    assert_eq!(parts(json!({})), Ok((SubLayers::ParallelSharedNorm, 1)));
    let new = |changes: Value| {
        let new = json!({ "new_decoder_architecture": true, "hidden_size": 64, "num_attention_heads": 8,
            "num_kv_heads": 2 });
        parts(with(&new, &changes))
    };
    assert_eq!(new(json!({})), Ok((SubLayers::Parallel, 2)));
    assert_eq!(new(json!({ "num_ln_in_parallel_attn": 1 })), Ok((SubLayers::ParallelSharedNorm, 2)));
    let sequential = json!({ "parallel_attn": false, "multi_query": false });
    assert_eq!(parts(sequential), Ok((SubLayers::Sequential, 71)));
    let model = of(json!({})).unwrap();
    assert_eq!((model.head_dim, model.d_ff, model.bias, model.tied), (64, 4 * 4544, false, true));
    let dropping = Hf { dropout: true, ..hf() };
    let dropped = json!({ "model_type": "falcon", "attention_dropout": 0.1 });
    assert!(read(&dropped, &dropping).is_ok(), "the library does not use it");
    for (config, expected) in [
        (json!({ "alibi": true }), "`alibi` is true: ALiBi position biases are not supported"),
        (json!({ "num_ln_in_parallel_attn": 2 }), "`num_ln_in_parallel_attn` is 2"),
        (json!({ "new_decoder_architecture": true, "parallel_attn": false }), "`parallel_attn` is false"),
        (json!({ "multi_query": false, "num_kv_heads": 1 }), "`num_kv_heads` is 1"),
        (json!({ "hidden_dropout": 0.1 }), "`hidden_dropout` is 0.1"),
    ] {
        let found = read(&with(&json!({ "model_type": "falcon" }), &config), &dropping).unwrap_err();
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn mixtures_of_experts_are_read() {
    let of = |family: &str, changes| read(&with(&json!({ "model_type": family }), &changes), &hf());
    let experts = |family: &str| {
        let model = of(family, json!({})).unwrap();
        let Experts { count, per_token, normalize } = model.experts.unwrap();
        (count, per_token, normalize, model.d_ff, model.qk_norm)
    };
    assert_eq!(experts("mixtral"), (8, 2, true, 14_336, false));
    assert_eq!(experts("qwen3_moe"), (128, 8, false, 768, true));
    assert_eq!(experts("olmoe"), (64, 8, false, 2048, true));
    assert_eq!(of("olmoe", json!({})).unwrap().qk_norm_over, QkNormOver::AllHeads);
    // Versions of the library differ in the name.
    let named = |field: &str| of("qwen3_moe", json!({ field: 16 })).unwrap().experts.unwrap().count;
    assert_eq!(["num_experts", "num_local_experts"].map(named), [16; 2]);
    let windows = |changes| of("qwen3_moe", changes).unwrap().window;
    assert_eq!(windows(json!({ "sliding_window": 64, "use_sliding_window": false })), None);
    assert_eq!(windows(json!({ "sliding_window": 64, "use_sliding_window": true })), Some(64));
    let some = json!({ "use_sliding_window": true, "max_window_layers": 8 });
    assert!(of("qwen3_moe", some).unwrap_err().starts_with("`max_window_layers` is 8"));
    for (family, field, value) in [
        ("mixtral", "output_router_logits", json!(true)),
        ("mixtral", "router_jitter_noise", json!(0.1)),
        ("mixtral", "num_experts_per_tok", json!(9)),
        ("qwen3_moe", "decoder_sparse_step", json!(2)),
        ("qwen3_moe", "mlp_only_layers", json!([0])),
        ("olmoe", "clip_qkv", json!(8.0)),
        ("olmoe", "head_dim", json!(64)),
    ] {
        let refused = of(family, json!({ field: value })).unwrap_err();
        assert!(refused.starts_with(&format!("`{field}` is {value}, ")), "{refused}");
    }
    let both = of("qwen3_moe", json!({ "num_experts": 16, "num_local_experts": 8 })).unwrap_err();
    assert_eq!(both, "`num_experts` is 16, but `num_local_experts` is 8");
}
