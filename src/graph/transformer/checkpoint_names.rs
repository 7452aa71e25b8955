//! Names and layouts of a decoder's parameters in Hugging Face checkpoints.

use data::{CheckpointTensor, Form, TensorNaming};
use spec::{NormPlacement, SubLayers, Transformer};

/// The checkpoint tensors that make up a parameter with `rows` rows, in row order, for each naming scheme that contains
/// it.
pub(crate) fn checkpoint_tensors(
    model: &Transformer,
    parameter: &str,
    rows: usize,
) -> Vec<(TensorNaming, Vec<CheckpointTensor>)> {
    let gpt2 = gpt2(parameter, rows).map(|tensor| (TensorNaming::Gpt2, vec![tensor]));
    let llamas = [
        TensorNaming::Llama,
        TensorNaming::Phi3,
        TensorNaming::Starcoder2,
        TensorNaming::Phi,
        TensorNaming::Mixtral,
    ];
    let llamas =
        llamas.into_iter().filter_map(|naming| Some((naming, llama(model, naming, parameter, rows)?)));
    let gpt_neo = gpt_neo(model, parameter, rows).map(|tensors| (TensorNaming::GptNeo, tensors));
    let gpt_neox = gpt_neox(model, parameter, rows).map(|tensors| (TensorNaming::GptNeox, tensors));
    let falcon = falcon(model, parameter, rows).map(|tensors| (TensorNaming::Falcon, tensors));
    gpt2.into_iter().chain(llamas).chain(gpt_neo).chain(gpt_neox).chain(falcon).collect()
}

/// Splits a block parameter's name into block number, name in the block, and `weight` or `bias`.
fn in_block(parameter: &str) -> Option<(&str, &str, &str)> {
    let (number, rest) = parameter.strip_prefix("blocks.")?.split_once('.')?;
    let (name, kind) = rest.rsplit_once('.')?;
    Some((number, name, kind))
}

/// GPT-2 stores the weights of linear layers transposed, with one row per input channel.
fn gpt2(parameter: &str, rows: usize) -> Option<CheckpointTensor> {
    let with_form = |tensor: String, form| CheckpointTensor { tensor, rows, form };
    if let Some((number, name, kind)) = in_block(parameter) {
        let (tensor, is_linear) = match name {
            "attention.norm" => ("ln_1", false),
            "attention.qkv" => ("attn.c_attn", true),
            "attention.out" => ("attn.c_proj", true),
            "mlp.norm" => ("ln_2", false),
            "mlp.up" => ("mlp.c_fc", true),
            "mlp.out" => ("mlp.c_proj", true),
            _ => return None,
        };
        let form = if is_linear && kind == "weight" { Form::Transposed } else { Form::Plain };
        return Some(with_form(format!("h.{number}.{tensor}.{kind}"), form));
    }
    let (tensor, form) = match parameter {
        "embedding.table" => ("wte.weight", Form::Plain),
        "embedding.positions" => ("wpe.weight", Form::FirstRows),
        "head.norm.weight" => ("ln_f.weight", Form::Plain),
        "head.norm.bias" => ("ln_f.bias", Form::Plain),
        "head.weight" => ("lm_head.weight", Form::Plain),
        _ => return None,
    };
    Some(with_form(tensor.to_owned(), form))
}

/// GPT-Neo stores queries, keys and values in separate tensors, and no weights transposed.
fn gpt_neo(model: &Transformer, parameter: &str, rows: usize) -> Option<Vec<CheckpointTensor>> {
    let [queries, keys] = [model.heads, model.kv_heads].map(|heads| heads * model.head_dim);
    let plain = |(tensor, rows): (String, usize)| CheckpointTensor { tensor, rows, form: Form::Plain };
    let tensors = match in_block(parameter) {
        Some((number, "attention.qkv", kind)) => [("q", queries), ("k", keys), ("v", keys)]
            .map(|(part, rows)| (format!("h.{number}.attn.attention.{part}_proj.{kind}"), rows))
            .to_vec(),
        Some((number, "attention.out", kind)) => {
            vec![(format!("h.{number}.attn.attention.out_proj.{kind}"), rows)]
        }
        _ => {
            let tensor = gpt2(parameter, rows)?;
            let form = if tensor.form == Form::Transposed { Form::Plain } else { tensor.form };
            return Some(vec![CheckpointTensor { form, ..tensor }]);
        }
    };
    Some(tensors.into_iter().map(plain).collect())
}

/// Llama stores queries, keys and values in separate tensors, and so gate and up.
fn llama(
    model: &Transformer,
    naming: TensorNaming,
    parameter: &str,
    rows: usize,
) -> Option<Vec<CheckpointTensor>> {
    let plain = |tensor: String, rows| CheckpointTensor { tensor, rows, form: Form::Plain };
    let Some((number, name, kind)) = in_block(parameter) else {
        let tensor = match parameter {
            "embedding.table" => "embed_tokens.weight",
            "head.norm.weight" if naming == TensorNaming::Phi => "final_layernorm.weight",
            "head.norm.bias" if naming == TensorNaming::Phi => "final_layernorm.bias",
            "head.norm.weight" => "norm.weight",
            "head.norm.bias" => "norm.bias",
            "head.weight" => "lm_head.weight",
            "head.bias" => "lm_head.bias",
            _ => return None,
        };
        return Some(vec![plain(tensor.to_owned(), rows)]);
    };
    if let Some(experts) = &model.experts
        && let Some(tensors) = of_experts(experts.count, naming, name, rows)
    {
        let full = |(tensor, rows)| plain(format!("layers.{number}.{tensor}.{kind}"), rows);
        return Some(tensors.into_iter().map(full).collect());
    }
    let queries = model.heads * model.head_dim;
    let keys = model.kv_heads * model.head_dim;
    let tensors: &[(&str, usize)] = match (name, model.norm_placement) {
        ("attention.norm", NormPlacement::Pre | NormPlacement::Sandwich) => &[("input_layernorm", rows)],
        ("attention.out_norm", _) | ("mlp.norm", NormPlacement::Pre) => &[("post_attention_layernorm", rows)],
        ("mlp.norm", NormPlacement::Sandwich) => &[("pre_feedforward_layernorm", rows)],
        ("mlp.out_norm", _) => &[("post_feedforward_layernorm", rows)],
        ("attention.qkv", _) if naming == TensorNaming::Phi3 => &[("self_attn.qkv_proj", rows)],
        ("attention.qkv", _) => {
            &[("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)]
        }
        ("attention.q_norm", _) => &[("self_attn.q_norm", rows)],
        ("attention.k_norm", _) => &[("self_attn.k_norm", rows)],
        ("attention.out", _) if naming == TensorNaming::Phi => &[("self_attn.dense", rows)],
        ("attention.out", _) => &[("self_attn.o_proj", rows)],
        ("mlp.gate_up", _) if naming == TensorNaming::Phi3 => &[("mlp.gate_up_proj", rows)],
        ("mlp.gate_up", _) => &[("mlp.gate_proj", rows / 2), ("mlp.up_proj", rows / 2)],
        ("mlp.up", _) if naming == TensorNaming::Starcoder2 => &[("mlp.c_fc", rows)],
        ("mlp.out", _) if naming == TensorNaming::Starcoder2 => &[("mlp.c_proj", rows)],
        ("mlp.up", _) if naming == TensorNaming::Phi => &[("mlp.fc1", rows)],
        ("mlp.out", _) if naming == TensorNaming::Phi => &[("mlp.fc2", rows)],
        ("mlp.up", _) => &[("mlp.up_proj", rows)],
        ("mlp.out", _) => &[("mlp.down_proj", rows)],
        _ => return None,
    };
    Some(
        tensors
            .iter()
            .map(|&(tensor, rows)| plain(format!("layers.{number}.{tensor}.{kind}"), rows))
            .collect(),
    )
}

/// The tensors of a router or of `count` experts, with their rows: each expert has its own.
fn of_experts(
    count: usize,
    naming: TensorNaming,
    parameter: &str,
    rows: usize,
) -> Option<Vec<(String, usize)>> {
    let (layer, [gate, up, out]) = match naming {
        TensorNaming::Mixtral => ("block_sparse_moe", ["w1", "w3", "w2"]),
        _ => ("mlp", ["gate_proj", "up_proj", "down_proj"]),
    };
    let parts = match parameter {
        "mlp.router" => return Some(vec![(format!("{layer}.gate"), rows)]),
        "mlp.experts.gate_up" => &[gate, up][..],
        "mlp.experts.out" => &[out],
        _ => return None,
    };
    let each = rows / count / parts.len();
    let of_expert = |expert| parts.iter().map(move |part| (format!("{layer}.experts.{expert}.{part}"), each));
    Some((0..count).flat_map(of_expert).collect())
}

/// GPT-NeoX stores each head's queries, keys and values together.
fn gpt_neox(model: &Transformer, parameter: &str, rows: usize) -> Option<Vec<CheckpointTensor>> {
    let plain = |tensor: String| vec![CheckpointTensor { tensor, rows, form: Form::Plain }];
    let Some((number, name, kind)) = in_block(parameter) else {
        let tensor = match parameter {
            "embedding.table" => "embed_in.weight",
            "head.norm.weight" => "final_layer_norm.weight",
            "head.norm.bias" => "final_layer_norm.bias",
            "head.weight" => "embed_out.weight",
            _ => return None,
        };
        return Some(plain(tensor.to_owned()));
    };
    let tensor = match name {
        "attention.norm" => "input_layernorm",
        "mlp.norm" => "post_attention_layernorm",
        "attention.qkv" => "attention.query_key_value",
        "attention.out" => "attention.dense",
        "mlp.up" => "mlp.dense_h_to_4h",
        "mlp.out" => "mlp.dense_4h_to_h",
        _ => return None,
    };
    let tensor = format!("layers.{number}.{tensor}.{kind}");
    Some(if name == "attention.qkv" { interleaved(model, &tensor) } else { plain(tensor) })
}

/// Falcon stores the queries that share a key together with their key and value.
fn falcon(model: &Transformer, parameter: &str, rows: usize) -> Option<Vec<CheckpointTensor>> {
    let plain = |tensor: String| vec![CheckpointTensor { tensor, rows, form: Form::Plain }];
    let Some((number, name, kind)) = in_block(parameter) else {
        let tensor = match parameter {
            "embedding.table" => "word_embeddings.weight",
            "head.norm.weight" => "ln_f.weight",
            "head.norm.bias" => "ln_f.bias",
            "head.weight" => "lm_head.weight",
            _ => return None,
        };
        return Some(plain(tensor.to_owned()));
    };
    let tensor = match (name, model.sub_layers) {
        ("attention.norm", SubLayers::Parallel) => "ln_attn",
        ("attention.norm", SubLayers::Sequential | SubLayers::ParallelSharedNorm) => "input_layernorm",
        ("mlp.norm", SubLayers::Parallel) => "ln_mlp",
        ("mlp.norm", SubLayers::Sequential) => "post_attention_layernorm",
        ("attention.qkv", _) => "self_attention.query_key_value",
        ("attention.out", _) => "self_attention.dense",
        ("mlp.up", _) => "mlp.dense_h_to_4h",
        ("mlp.out", _) => "mlp.dense_4h_to_h",
        _ => return None,
    };
    let tensor = format!("h.{number}.{tensor}.{kind}");
    Some(if name == "attention.qkv" { interleaved(model, &tensor) } else { plain(tensor) })
}

/// Queries, keys and values from a tensor with, for each key head, its query heads, the key and the value.
fn interleaved(model: &Transformer, tensor: &str) -> Vec<CheckpointTensor> {
    let Transformer { heads, kv_heads, head_dim, .. } = *model;
    let queries = heads / kv_heads * head_dim;
    let group = queries + 2 * head_dim;
    // The first row within a group, and the number of rows.
    let parts = [(0, queries), (queries, head_dim), (queries + head_dim, head_dim)];
    let slices = parts.into_iter().flat_map(|(start, rows)| {
        (0..kv_heads).map(move |head| {
            let form = Form::Slice { first: head * group + start, of: kv_heads * group };
            CheckpointTensor { tensor: tensor.to_owned(), rows, form }
        })
    });
    slices.collect()
}
