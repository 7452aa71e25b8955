//! Rules between keys of different tables. Each error marks all keys involved and suggests a value. Rules between keys
//! of one table are in that table's file.

use super::model::{Sequential, decides};
use super::resolved::{Evaluation, RunConfig, SeedPolicy};
use super::strategy::{Conflict, ConflictMessage, DataResidence, IdDtype, InputDtype, Loader, conflicts};
use crate::reader::declare::KeywordEnum as _;
use crate::reader::error::{Error, Problem};
use crate::reader::keys::join;
use crate::reader::source::Sources;
use crate::reader::tree::Table;

/// Checks a configuration whose keys are all in range; `tree` has the spans of the keys.
pub(crate) fn check(config: &RunConfig, tree: &Table) -> Result<(), Vec<Problem>> {
    let RunConfig {
        model,
        data,
        train,
        evaluation,
        measure: _,
        strategy,
        data_len: _,
        lengths: _,
        all_packed: _,
    } = config;
    let problems: Vec<Problem> = [
        model.check(tree),
        every_micro_batch_has_a_sample(config, tree),
        batch_norm_has_two_values(config, tree),
        data.check(tree),
        data_matches_model(config, tree),
        ids_fit_loader_dtype(config, tree),
        held_data_is_one_row_or_samples(config, tree),
        inputs_have_dtype(config, tree),
        shuffled_data_is_finite(config, tree),
        separated_documents_need_causal_attention(config, tree),
        lengths_may_vary(config, tree),
        if evaluation.is_some() { data.has_evaluation_data(tree) } else { Ok(()) },
        train.optimizer.check(tree),
        if config.trains() { train.schedule.check(config.steps(), tree) } else { Ok(()) },
        has_parameters_to_train(config, tree),
        strategy.segments_have_layers(model.recompute_units(), tree),
    ]
    .into_iter()
    .filter_map(Result::err)
    .chain(excluded(config, tree))
    .collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(sizes_can_be_counted(config, tree)?)
}

/// Fails if bytes or operations of a batch, or the bytes of collected logits, exceed 64-bit counters.
fn sizes_can_be_counted(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let model = &config.model;
    model.sizes_can_be_counted(("train.batch_size", config.train.batch_size), tree)?;
    let Some(Evaluation { batches, batch_size, collect, .. }) = config.evaluation else { return Ok(()) };
    if let Some(batch_size) = batch_size {
        model.sizes_can_be_counted(("evaluation.batch_size", batch_size), tree)?;
    }
    if collect.is_none() {
        return Ok(());
    }
    let sizes = [batches, batch_size.unwrap_or(config.train.batch_size), model.output_elements()];
    let bytes = 4 * sizes.into_iter().map(|size| size as u128).product::<u128>();
    if bytes <= 1 << 57 {
        return Ok(());
    }
    let keys = ["evaluation.batches", "evaluation.batch_size", "evaluation.collect"];
    let message = "the logits of one evaluation exceed the counters of 64 bits".to_owned();
    Err(attach_span(message, &keys, tree, "use fewer batches, or collect = \"off\""))
}

/// Keys whose values exclude each other.
fn excluded(config: &RunConfig, tree: &Table) -> impl Iterator<Item = Problem> {
    conflicts().filter_map(|Conflict { keys, check }| {
        let ConflictMessage { reason, remedy } = check(config)?;
        Some(attach_span(reason, keys, tree, remedy))
    })
}

/// A problem with the spans of those keys that were written, or of the keys of `[model.hf]` that decide them.
pub fn attach_span(message: String, keys: &[&str], tree: &Table, help: impl Into<String>) -> Problem {
    let mut problem = Problem::new(message).help(help);
    let written = |key: &&str| {
        let instead = || decides(key).iter().find_map(|instead| tree.find(instead));
        tree.find(key).or_else(instead)
    };
    for entry in keys.iter().filter_map(written) {
        if !problem.places.contains(&entry.span()) {
            problem.places.push(entry.span());
        }
    }
    problem
}

impl Sources {
    /// An error about a key, such as `data.text.paths` or, for an element of a list, `data.text.paths[1]`. It marks the
    /// key, or else the table that would contain it.
    pub fn error_at(&self, key: &str, message: impl Into<String>, help: Option<String>) -> Error {
        let instead = decides(key).into_iter().find(|instead| self.is_located(instead));
        let key = instead.as_deref().unwrap_or(key);
        self.error_near(key.strip_prefix("strategy.").unwrap_or(key), message, help)
    }
}

/// Checks what is known of the data set before it is read; the rest is checked once it was read.
fn data_matches_model(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (model, data) = (config.model.name(), config.data.name());
    let mismatch = match (config.model.sequential(), config.data.has_tensors()) {
        (Some(_), false) => {
            Some(("tensors", "use data.tensors, data.idx, data.cifar, data.images or data.random"))
        }
        (None, true) => Some(("tokens", "use data.text, data.tokens or data.synthetic")),
        _ => None,
    };
    if let Some((input, help)) = mismatch {
        let message = format!("model.{model} reads {input}, which data.{data} does not provide");
        return Err(attach_span(message, &["model", "data"], tree, help));
    }
    let known = config.data.data_set().check_known(&config.sample());
    known.map_err(|error| attach_span(error.to_string(), &error.keys(), tree, error.help()))
}

/// Ids must fit into `loader.dtype`: the ids of the data set if their bound is known, else all ids that the model
/// accepts.
fn ids_fit_loader_dtype(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (Loader { dtype, source, .. }, data_set) = (config.strategy.loader, config.data.data_set());
    let sample = config.sample();
    for part in &sample.parts {
        let Some(asked) = part.below else { continue };
        // With tokens on the device, a missing sample is marked by its offset, not by masked ids.
        let is_marked = source == DataResidence::Device && data_set.is_row();
        let masks = sample.masks(part.role) && !is_marked;
        let known = data_set.below(part.role).filter(|known| known.count <= asked.count).unwrap_or(asked);
        if known.count <= dtype.holds(masks) {
            continue;
        }
        let reason = match known.count - 1 {
            largest if masks => {
                format!(
                    "loader.dtype = \"{}\" is too small for ids up to {largest} and one id for masked positions",
                    dtype.keyword()
                )
            }
            largest => format!("loader.dtype = \"{}\" is too small for ids up to {largest}", dtype.keyword()),
        };
        let fits: Vec<String> = IdDtype::ALL
            .iter()
            .filter(|other| known.count <= other.holds(masks))
            .map(|other| format!("\"{}\"", other.keyword()))
            .collect();
        let help = format!("use {}", join(&fits, "or"));
        return Err(attach_span(reason, &["strategy.loader.dtype", known.key], tree, help));
    }
    Ok(())
}

/// Only a data set that is one row of tokens, or a number of samples, can be held in memory as a whole.
fn held_data_is_one_row_or_samples(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (source, data_set) = (config.strategy.loader.source, config.data.data_set());
    if source == DataResidence::Stream || data_set.is_row() {
        return Ok(());
    }
    if config.data.has_tensors() {
        return held_samples_stay(config, tree);
    }
    let documents = "data.text.documents";
    let (what, keys, other) = match config.data.text() {
        None => (
            format!("data.{} generates its samples", data_set.name()),
            ["strategy.loader.source", "data"],
            "",
        ),
        Some(_) => (
            format!("{documents} keeps documents apart"),
            ["strategy.loader.source", documents],
            " or documents = \"joined\"",
        ),
    };
    let reason = format!("loader.source = \"{}\" needs data in one row of tokens; {what}", source.keyword());
    Err(attach_span(reason, &keys, tree, format!("use source = \"stream\"{other}")))
}

/// Samples that are held in memory are the same in each step, unless batches are assembled on the host.
fn held_samples_stay(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (source, data_set) = (config.strategy.loader.source, config.data.data_set());
    let (name, keyword) = (data_set.name(), source.keyword());
    if !data_set.has_epochs() {
        let reason = format!(
            "loader.source = \"{keyword}\" holds all samples; data.{name} makes new ones in each step"
        );
        let help = format!("use data.{name}.samples = 10_000 or source = \"stream\"");
        return Err(attach_span(reason, &["strategy.loader.source", "data"], tree, help));
    }
    if source == DataResidence::Device && data_set.augments() {
        let reason = format!(
            "loader.source = \"{keyword}\" holds samples as they are; crop and flip of data.{name} change them in each step, on the host"
        );
        let [crop, flip] = ["crop", "flip"].map(|key| format!("data.{name}.{key}"));
        let help = "use source = \"ram\" or \"stream\", or remove crop and flip";
        return Err(attach_span(reason, &["strategy.loader.source", &crop, &flip], tree, help));
    }
    Ok(())
}

/// Only inputs that are numbers have `input_dtype`, and only those of files may be pixels.
fn inputs_have_dtype(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (dtype, data_set) = (config.strategy.input_dtype, config.data.data_set());
    let (keyword, name) = (dtype.keyword(), data_set.name());
    let key = "strategy.input_dtype";
    if dtype == InputDtype::Fp32 {
        return Ok(());
    }
    let ids_of = match config.model.sequential() {
        Some(model) if model.ids().is_some() => Some("model.sequential".to_owned()),
        Some(_) => None,
        None => Some(format!("data.{name}")),
    };
    if let Some(ids_of) = ids_of {
        let reason = format!("input_dtype = \"{keyword}\" is of inputs that are numbers; {ids_of} has ids");
        return Err(attach_span(reason, &[key, "data"], tree, "use loader.dtype = \"u16\" for ids"));
    }
    if dtype == InputDtype::U8 && data_set.pixel_scale().is_none() {
        let reason =
            format!("input_dtype = \"u8\" needs inputs that are stored in u8; data.{name} makes numbers");
        let help = "use input_dtype = \"fp16\", or data.idx, data.cifar, data.images or data.tensors";
        return Err(attach_span(reason, &[key, "data"], tree, help));
    }
    Ok(())
}

/// Shuffling needs epochs, so a finite data set.
fn shuffled_data_is_finite(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let data_set = config.data.data_set();
    if !config.train.shuffle || data_set.has_epochs() {
        return Ok(());
    }
    let reason = format!("shuffle needs epochs; data.{} generates samples without end", data_set.name());
    Err(attach_span(reason, &["train.shuffle", "data"], tree, "use shuffle = false or other data"))
}

/// Padded and packed documents rely on causal attention: padding follows the document, and each position is masked from
/// the start of its document only.
fn separated_documents_need_causal_attention(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let sees_all = config.model.transformer().is_some_and(|model| !model.causal);
    if !sees_all || config.data.added_parts(&config.sample()).is_empty() {
        return Ok(());
    }
    let message =
        "padded and packed documents need causal attention, which hides padding; causal = false attends to all positions"
            .to_owned();
    let keys = ["data.text.documents", "model.transformer.causal"];
    Err(attach_span(message, &keys, tree, "use causal = true or documents = \"joined\""))
}

/// Keys that keep values of one micro-batch into the next, or that repeat a step's work as it was, need one shape.
fn lengths_may_vary(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let pad_to = "data.text.pad_to";
    let RunConfig { measure, strategy, .. } = config;
    let conflicts = [
        (strategy.graph, "strategy.graph", "graph = true replays kernels of one shape", "graph = false"),
        (strategy.leak.is_some(), "strategy.leak", "leak keeps values of one shape", "leak = \"off\""),
        (
            !strategy.keep.is_empty(),
            "strategy.keep",
            "keep holds values until the next micro-batch",
            "keep = []",
        ),
        (
            config.collect().is_some(),
            "evaluation.collect",
            "collect keeps outputs of one shape",
            "collect = \"off\"",
        ),
        (
            measure.seeds == SeedPolicy::Vary,
            "measure.seeds",
            "with seeds = \"vary\" lengths and memory differ between repeats",
            "seeds = \"same\"",
        ),
    ];
    let found = conflicts.into_iter().find(|(conflicts, ..)| *conflicts);
    let Some((_, key, reason, remedy)) = found.filter(|_| config.data.batch_multiple().is_some()) else {
        return Ok(());
    };
    let message = format!("with pad_to = \"batch\" the shapes of micro-batches vary; {reason}");
    Err(attach_span(message, &[pad_to, key], tree, format!("use pad_to = \"context\" or {remedy}")))
}

fn has_parameters_to_train(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let has_none = config.model.sequential().is_some_and(|model| !model.has_parameters());
    if !config.trains() || !has_none {
        return Ok(());
    }
    let message = "model.sequential.layers have no parameters to train".to_owned();
    let help = "add a linear layer or a norm, or use measure.what = \"inference\"";
    Err(attach_span(message, &["model.sequential.layers"], tree, help))
}

/// Fails if batch norm would compute the variance of a single value.
fn batch_norm_has_two_values(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let least = config.model.sequential().and_then(Sequential::least_normalised);
    let samples = config.tail().unwrap_or(config.micro_batch());
    if least != Some(1) || samples > 1 || !config.trains() {
        return Ok(());
    }
    let message = "batch norm of features needs micro-batches of two samples or more, not of one".to_owned();
    let keys = ["train.batch_size", "strategy.accumulate"];
    Err(attach_span(message, &keys, tree, "use larger micro-batches, or group_norm or layer_norm"))
}

fn every_micro_batch_has_a_sample(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (batch, accumulate) = (config.train.batch_size, config.strategy.accumulate);
    if accumulate <= batch {
        return Ok(());
    }
    Err(attach_span(
        format!(
            "accumulate = {accumulate} exceeds train.batch_size = {batch}: a micro-batch has at least one sample"
        ),
        &["strategy.accumulate", "train.batch_size"],
        tree,
        if batch == 1 { "use 1".to_owned() } else { format!("use 1 to {batch}") },
    ))
}

/// The divisors of a number, as "1, 2, 4 or 8"; if there are more than eight, the two nearest to the requested value.
pub(super) fn divisors(number: usize, wanted: usize) -> String {
    let mut all: Vec<usize> = Vec::new();
    let mut candidate = 1;
    while candidate * candidate <= number {
        if number.is_multiple_of(candidate) {
            all.push(candidate);
            all.push(number / candidate);
        }
        candidate += 1;
    }
    all.sort_unstable();
    all.dedup();
    if all.len() > 8 {
        let above = all.partition_point(|divisor| *divisor < wanted);
        all = all[above.saturating_sub(1)..(above + 1).min(all.len())].to_vec();
    }
    let divisors: Vec<String> = all.iter().map(usize::to_string).collect();
    join(&divisors, "or")
}
