//! The final parameters as the library transformers stores them; with LoRA, the factors as PEFT stores them.

use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};

use super::tensor_file::{TensorFile, TensorHeader};
use crate::engine::Engine;
use crate::error::{Stop, cannot_write};
use crate::prepare::Prepared;
use compile::{Parameter, Program};
use data::{CheckpointTensor, Form, StoredParameters, TensorNaming};
use ops::ValueId;
use spec::{HfConfiguration, Lora, Positions, RunConfig};

const CONFIG_FILE: &str = "config.json";
const WEIGHTS_FILE: &str = "model.safetensors";
const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
const ADAPTER_FILE: &str = "adapter_model.safetensors";
/// The prefix of PEFT's tensors.
const BASE: &str = "base_model.model.";

/// The files of a run's checkpoint: the configuration, then the tensors.
pub(super) fn files(config: &RunConfig) -> [&'static str; 2] {
    match config.strategy.lora {
        None => [CONFIG_FILE, WEIGHTS_FILE],
        Some(_) => [ADAPTER_CONFIG_FILE, ADAPTER_FILE],
    }
}

/// The configuration of a run's model in the library. `None` if no family has it.
pub(super) fn configuration(config: &RunConfig) -> Option<HfConfiguration> {
    config.model.transformer()?.hf_configuration()
}

/// Why an adapter would be another one in the library.
pub(super) fn untransferable(config: &RunConfig) -> Option<&'static str> {
    let (model, lora) = (config.model.transformer()?, config.strategy.lora.as_ref()?);
    let trains = |layer: &str| lora.trained.iter().any(|trained| trained == layer);
    let trains_table = trains("embedding");
    if trains_table && model.tied {
        Some("with a tied head, PEFT trains a copy of the embedding that the head does not use")
    } else if trains_table && model.positions == Positions::Learned {
        Some("PEFT's copy of the position table has all rows of the base, not those of this context")
    } else if model.experts.is_some() && lora.trained.iter().any(|trained| trained.starts_with("blocks")) {
        Some(
            "version 5 of the library stores the experts of a block as one parameter, which PEFT names otherwise",
        )
    } else if trains("head") && configuration(config)?.family.naming() == TensorNaming::GptNeox {
        Some("the library's versions name the head of GPT-NeoX differently")
    } else if lora.targets.iter().any(|target| is_part_of_one_tensor(config, target).unwrap_or(false)) {
        Some(
            "the library stacks the parts that have factors in one layer; use `attention.qkv` or `mlp.gate_up`",
        )
    } else {
        None
    }
}

/// Whether a target is a part of a layer that the library's class of the model does not split.
fn is_part_of_one_tensor(config: &RunConfig, target: &str) -> Option<bool> {
    let needed = graph::needed(&config.model);
    let of = |layer: &str| needed.iter().find(|required| required.name == format!("blocks.0.{layer}.weight"));
    let (stacked, _) = graph::stacked_layer(target).filter(|_| of(target).is_none())?;
    let tensors = of(&stacked)?.tensors(configuration(config)?.family.naming())?;
    Some(joined(tensors).len() == 1)
}

/// A tensor of the file: rows of a parameter.
struct SavedTensor {
    name: String,
    parameter: ValueId,
    /// In the tensor's order.
    rows: Vec<Range<usize>>,
    form: Form,
}

/// Writes the current parameters.
///
/// # Errors
/// A file cannot be written, or the model is of no family.
pub(super) fn write(folder: &Path, run: &Prepared, engine: &mut Engine) -> Result<(), Stop> {
    let Prepared { config, program, weights, .. } = run;
    let unknown = || cannot_write(folder, std::io::Error::other("no model family has this architecture"));
    let configuration = configuration(config).ok_or_else(unknown)?;
    // An adapter belongs to the class of its base. Several classes have one architecture (Llama, Phi-3): without a family,
    // the base's names decide.
    let has_family = config.model.transformer().is_some_and(|model| model.family.is_some());
    let base = weights.as_ref().filter(|_| config.strategy.lora.is_some() && !has_family);
    let naming = base.and_then(StoredParameters::naming).unwrap_or(configuration.family.naming());
    let needed = graph::needed(&config.model);
    let tensors_of = |parameter: &str| -> &[CheckpointTensor] {
        let required = needed.iter().find(|required| required.name == parameter);
        required.and_then(|required| required.tensors(naming)).unwrap_or_default()
    };
    let saved = match &config.strategy.lora {
        None => parameters(program, naming, |_| true, tensors_of),
        Some(_) => trained(program, naming, tensors_of),
    };
    let unnamed =
        |name| cannot_write(folder, std::io::Error::other(format!("the library has no name for {name}")));
    let tensors = saved.map_err(unnamed)?;
    let fields = match &config.strategy.lora {
        None => configuration.fields,
        Some(lora) => adapter(lora, naming, config.model.weights(), &tensors),
    };
    let [config_file, tensor_file] = files(config);
    let path = folder.join(config_file);
    let text = serde_json::to_vec_pretty(&fields).map_err(std::io::Error::other);
    text.and_then(|text| fs::write(&path, text)).map_err(|error| cannot_write(&path, error))?;
    write_tensors(&folder.join(tensor_file), program, engine, &tensors)
}

/// Selected parameters under the library's names. Fails with the name of a parameter that the library does not have.
fn parameters<'a>(
    program: &Program,
    naming: TensorNaming,
    is_selected: impl Fn(&Parameter) -> bool,
    tensors_of: impl Fn(&str) -> &'a [CheckpointTensor],
) -> Result<Vec<SavedTensor>, String> {
    let mut saved = Vec::new();
    for &Parameter { value, .. } in program.parameters.iter().filter(|parameter| is_selected(parameter)) {
        let name = program.full_name(value);
        let tensors = joined(tensors_of(&name));
        if tensors.is_empty() {
            return Err(name);
        }
        saved.extend(tensors.into_iter().map(|(tensor, rows)| SavedTensor {
            name: naming.with_prefix(&tensor.tensor),
            parameter: value,
            rows,
            form: tensor.form,
        }));
    }
    Ok(saved)
}

/// The factors of LoRA and the layers trained in full under PEFT's names. If the library splits a layer that has one A
/// here, each part stores a copy of A and its rows of B.
fn trained<'a>(
    program: &Program,
    naming: TensorNaming,
    tensors_of: impl Fn(&str) -> &'a [CheckpointTensor],
) -> Result<Vec<SavedTensor>, String> {
    let is_factor = |parameter: &Parameter| graph::is_factor(program.value(parameter.value).name);
    let in_full =
        |parameter: &Parameter| program.buckets[parameter.bucket].trainable && !is_factor(parameter);
    let mut saved = parameters(program, naming, in_full, &tensors_of)?;
    saved.iter_mut().for_each(|tensor| tensor.name.insert_str(0, BASE));
    for parameter in program.parameters.iter().filter(|parameter| is_factor(parameter)) {
        let name = program.full_name(parameter.value);
        let all_rows = || std::iter::once(0..program.ty(parameter.value).shape.dims()[0]).collect();
        let (layer, factor) = name.rsplit_once('.').unwrap_or_default();
        let mut tensors = joined(tensors_of(&format!("{layer}.weight")));
        if let Some((stacked, part)) = graph::stacked_layer(layer).filter(|_| tensors.is_empty()) {
            let parts = tensors_of(&format!("{stacked}.weight"));
            // The factor has the rows of its part. Slices of one tensor have no factors of their own.
            let is_split = joined(parts).len() == parts.len() && parts.len() > 1;
            tensors.extend(parts.get(part).filter(|_| is_split).map(|tensor| (tensor, all_rows())));
        }
        if tensors.is_empty() {
            return Err(name);
        }
        for (tensor, rows) in tensors {
            let module = naming.with_prefix(tensor.tensor.trim_end_matches(".weight"));
            saved.push(SavedTensor {
                name: format!("{BASE}{module}.{factor}.weight"),
                parameter: parameter.value,
                rows: if factor == "lora_A" { all_rows() } else { rows },
                form: Form::Plain,
            });
        }
    }
    Ok(saved)
}

/// Tensors with their rows of the parameter.
fn with_rows(tensors: &[CheckpointTensor]) -> impl Iterator<Item = (&CheckpointTensor, Range<usize>)> {
    tensors.iter().scan(0, |end, tensor| {
        let start = *end;
        *end += tensor.rows;
        Some((tensor, start..*end))
    })
}

/// Tensors with their rows of the parameter, in the tensor's order: slices of one tensor are joined.
fn joined(tensors: &[CheckpointTensor]) -> Vec<(&CheckpointTensor, Vec<Range<usize>>)> {
    let mut slices: Vec<(&CheckpointTensor, usize, Range<usize>)> = with_rows(tensors)
        .map(|(tensor, rows)| match tensor.form {
            Form::Slice { first, .. } => (tensor, first, rows),
            Form::Plain | Form::Transposed | Form::FirstRows => (tensor, 0, rows),
        })
        .collect();
    slices.sort_by_key(|(tensor, first, _)| (&tensor.tensor, *first));
    let mut joined: Vec<(&CheckpointTensor, Vec<Range<usize>>)> = Vec::new();
    for (tensor, _, rows) in slices {
        match joined.last_mut() {
            Some((last, all)) if last.tensor == tensor.tensor => all.push(rows),
            _ => joined.push((tensor, vec![rows])),
        }
    }
    joined
}

/// PEFT's configuration of an adapter with these tensors.
fn adapter(lora: &Lora, naming: TensorNaming, base: Option<&Path>, tensors: &[SavedTensor]) -> Value {
    // `attn.c_proj` of `base_model.model.transformer.h.0.attn.c_proj.lora_A.weight`: in GPT-2, `c_proj` is ambiguous.
    let module = |tensor: &SavedTensor| {
        let (path, _) = tensor.name.rsplit_once(".lora_A")?;
        Some(path.rsplitn(3, '.').take(2).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("."))
    };
    let mut modules: Vec<String> = tensors.iter().filter_map(module).collect();
    modules.sort_unstable();
    modules.dedup();
    // The whole path: in the library, every module whose path ends with the name is trained.
    let in_full = |tensor: &SavedTensor| {
        let (path, _) = tensor.name.strip_prefix(BASE)?.rsplit_once('.')?;
        (!path.contains(".lora_")).then(|| path.to_owned())
    };
    let mut in_full: Vec<String> = tensors.iter().filter_map(in_full).collect();
    in_full.dedup();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        // The library reads a folder.
        "base_model_name_or_path": base.and_then(Path::parent).map(Path::to_string_lossy),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rslora,
        "modules_to_save": if in_full.is_empty() { Value::Null } else { in_full.into() },
        "bias": "none",
        // GPT-2 stores the weights of linear layers transposed.
        "fan_in_fan_out": naming == TensorNaming::Gpt2,
        "target_modules": modules,
        "inference_mode": true,
    })
}

fn write_tensors(
    path: &Path,
    program: &Program,
    engine: &mut Engine,
    tensors: &[SavedTensor],
) -> Result<(), Stop> {
    let header = |tensor: &SavedTensor| {
        let ty = program.ty(tensor.parameter);
        let rows = tensor.rows.iter().map(ExactSizeIterator::len).sum();
        let mut dims = [&[rows], &ty.shape.dims()[1..]].concat();
        if tensor.form == Form::Transposed {
            dims.reverse();
        }
        TensorHeader { name: tensor.name.clone(), dtype: ty.dtype, dims }
    };
    let headers: Vec<TensorHeader> = tensors.iter().map(header).collect();
    let written = |result: std::io::Result<()>| result.map_err(|error| cannot_write(path, error));
    let mut file = TensorFile::create(path, &headers).map_err(|error| cannot_write(path, error))?;
    for tensor in tensors {
        let ty = program.ty(tensor.parameter);
        let columns = ty.elements() / ty.shape.dims()[0];
        for rows in &tensor.rows {
            let (first, count) = (rows.start * columns, rows.len() * columns);
            let mut bytes = engine.read_elements(tensor.parameter, first, count)?;
            if tensor.form == Form::Transposed {
                bytes = transposed(&bytes, columns, ty.dtype.bytes_of(1) as usize);
            }
            written(file.write(&bytes))?;
        }
    }
    Ok(written(file.finish())?)
}

/// The bytes of a matrix with this number of columns, transposed.
fn transposed(bytes: &[u8], columns: usize, element: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = bytes.chunks(columns * element).collect();
    let column =
        |column: usize| rows.iter().flat_map(move |row| &row[column * element..(column + 1) * element]);
    (0..columns).flat_map(column).copied().collect()
}
