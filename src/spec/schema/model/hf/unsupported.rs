//! Families that are not read, with what they need and `[model.transformer]` lacks.

use serde_json::{Map, Value};

use super::known;

/// What a model needs.
pub(super) struct Missing {
    /// Completes "the model needs".
    pub(super) part: &'static str,
    /// Whether `[model.transformer]` can describe the model.
    pub(super) describable: bool,
}

/// Families by `model_type`, with the part that is not supported.
const LACKING: &[(&str, &[&str])] = &[
    ("ALiBi position biases", &["bloom", "mpt", "RefinedWebModel", "RefinedWeb"]),
    (
        "multi-head latent attention",
        &[
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "kimi_k2",
            "kimi_k25",
            "longcat_flash",
            "minicpm3",
            "mistral4",
            "youtu",
        ],
    ),
    (
        "state-space, recurrent or linear-attention layers",
        &[
            "bamba",
            "falcon_h1",
            "falcon_mamba",
            "granitemoehybrid",
            "griffin",
            "jamba",
            "kimi_linear",
            "lfm2",
            "lfm2_moe",
            "mamba",
            "mamba2",
            "minimax",
            "minimax_m2",
            "nemotron_h",
            "olmo_hybrid",
            "plamo2",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_5_text",
            "qwen3_next",
            "recurrent_gemma",
            "rwkv",
            "rwkv7",
            "xlstm",
            "zamba",
            "zamba2",
        ],
    ),
    (
        "shared experts or another kind of router",
        &[
            "afmoe",
            "arctic",
            "aria",
            "bailing_moe",
            "cohere2_moe",
            "dbrx",
            "deepseek",
            "doge",
            "dots1",
            "ernie4_5_moe",
            "exaone_moe",
            "glm4_moe",
            "glm4_moe_lite",
            "gpt_oss",
            "granitemoeshared",
            "grok-1",
            "hunyuan_v1_moe",
            "jetmoe",
            "llama4",
            "llama4_text",
            "phimoe",
            "qwen2_moe",
            "solar_open",
        ],
    ),
    (
        "bidirectional encoder layers with token types or a masked-token head",
        &[
            "albert",
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "canine",
            "convbert",
            "data2vec-text",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "ernie",
            "esm",
            "eurobert",
            "flaubert",
            "fnet",
            "funnel",
            "gte",
            "ibert",
            "jina_bert",
            "layoutlm",
            "layoutlmv2",
            "layoutlmv3",
            "longformer",
            "luke",
            "markuplm",
            "megatron-bert",
            "mobilebert",
            "modernbert",
            "mpnet",
            "mra",
            "neobert",
            "new",
            "nezha",
            "nomic_bert",
            "nystromformer",
            "qdqbert",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "splinter",
            "squeezebert",
            "xlm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xmod",
            "yoso",
        ],
    ),
    (
        "an encoder with cross-attention",
        &[
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "encoder-decoder",
            "fsmt",
            "led",
            "longt5",
            "m2m_100",
            "marian",
            "mbart",
            "moonshine",
            "mt5",
            "mvp",
            "nllb-moe",
            "pegasus",
            "pegasus_x",
            "plbart",
            "pop2piano",
            "prophetnet",
            "seamless_m4t",
            "speech_to_text",
            "speecht5",
            "switch_transformers",
            "t5",
            "t5gemma",
            "t5gemma2",
            "udop",
            "umt5",
            "vision-encoder-decoder",
            "whisper",
            "xlm-prophetnet",
        ],
    ),
    (
        "image, audio or video inputs",
        &[
            "aya_vision",
            "beit",
            "blip",
            "blip-2",
            "chameleon",
            "clip",
            "deit",
            "detr",
            "dinov2",
            "emu3",
            "fuyu",
            "gemma3",
            "gemma3n",
            "gemma4",
            "git",
            "glm4v",
            "hubert",
            "idefics",
            "idefics2",
            "idefics3",
            "instructblip",
            "internvl",
            "internvl_chat",
            "janus",
            "kosmos-2",
            "llava",
            "llava_next",
            "llava_onevision",
            "minicpmv",
            "mistral3",
            "mllama",
            "molmo",
            "paligemma",
            "phi3_v",
            "phi4_multimodal",
            "phi4mm",
            "pixtral",
            "qwen2_5_omni",
            "qwen2_5_vl",
            "qwen2_audio",
            "qwen2_vl",
            "qwen3_vl",
            "qwen3_vl_moe",
            "siglip",
            "siglip2",
            "smolvlm",
            "swin",
            "vit",
            "wav2vec2",
            "wavlm",
        ],
    ),
    (
        "interleaved rotation",
        &["chatglm", "codegen", "cohere", "cohere2", "ernie4_5", "glm", "glm4", "gptj", "helium"],
    ),
    ("layer norms with weights around zero", &["nemotron"]),
    ("layer norms of queries and keys", &["persimmon"]),
    ("a bias in its last block alone", &["gpt_neox_japanese"]),
    ("muP's multipliers", &["minicpm"]),
    ("block-sparse attention", &["phi3small", "reformer"]),
    ("embeddings of each layer", &["gemma3n_text", "gemma4_text"]),
    ("norms without weights", &["olmo"]),
    ("a position table with an offset", &["biogpt", "opt"]),
    ("sinusoidal or relative positions", &["ctrl", "transfo-xl", "xglm", "xlnet"]),
    ("two attention maps per head", &["diffllama"]),
    ("an activation with trained parameters", &["apertus"]),
];

/// Families whose blocks `[model.transformer]` describes.
const DESCRIBABLE: &[&str] = &[
    "arcee",
    "exaone",
    "exaone4",
    "flex_olmo",
    "gpt_bigcode",
    "granitemoe",
    "internlm",
    "internlm2",
    "openai-gpt",
    "phi-msft",
    "qwen",
    "seed_oss",
    "stablelm",
    "stablelm_epoch",
    "yi",
    "Yi",
];

/// Parts of [`known::changed_part`] that `[model.transformer]` has.
const DESCRIBABLE_PARTS: &[&str] = &[
    "Granite's multipliers",
    "attention beside the feed-forward layer",
    "mixture-of-experts layers",
    "blocks without position encoding",
    "norms of queries and keys",
    "rotation of a part of the channels",
];

/// What the model of an unknown family needs; `None` if nothing is known about it.
pub(super) fn missing(model_type: &str, map: &Map<String, Value>) -> Option<Missing> {
    if DESCRIBABLE.contains(&model_type) {
        return Some(Missing { part: "", describable: true });
    }
    let known = LACKING.iter().find(|(_, families)| families.contains(&model_type)).map(|(part, _)| *part);
    let part = known.or_else(|| from_fields(map))?;
    Some(Missing { part, describable: false })
}

/// What the fields of a configuration stand for.
fn from_fields(map: &Map<String, Value>) -> Option<&'static str> {
    let is_set = |field: &str| map.get(field).is_some_and(|value| *value == Value::Bool(true));
    let has = |field: &str| map.get(field).is_some_and(|value| !value.is_null());
    if is_set("is_encoder_decoder") || has("encoder_layers") && has("decoder_layers") {
        return Some("an encoder with cross-attention");
    }
    let is_head = |name: &Value| name.as_str().is_some_and(|name| name.ends_with("ForMaskedLM"));
    let is_encoder = has("type_vocab_size")
        || map.get("architectures").and_then(Value::as_array).is_some_and(|names| names.iter().any(is_head));
    if is_encoder {
        return Some("bidirectional encoder layers with token types or a masked-token head");
    }
    let changes = |(field, value): &(&String, &Value)| {
        !known::changes_nothing(field) && !known::is_neutral(field, value)
    };
    let part = |(field, _): (&String, &Value)| known::changed_part(field);
    map.iter().filter(changes).filter_map(part).find(|part| !DESCRIBABLE_PARTS.contains(part))
}
