//! The tables that make a run, key by key: names, ranges and defaults.

use std::path::PathBuf;

use super::error::Problem;
use super::key::STRATEGY;
use super::kinds::{Count, DECAY_RATE, Flag, NOT_NEGATIVE, Number, POSITIVE, SHARE, Whole, Word};
use super::loss_scale;
use super::paths;
use super::reader::{Keys, Reader};
use super::resolved::*;
use super::tree::{Node, Table, Value};

/// A strategy's own keys. Others are set by `set."train.clip_norm"`.
pub(crate) const STRATEGY_KEYS: [&str; 9] = [
    "accumulate",
    "precision",
    "loss_scale",
    "recompute",
    "release",
    "gradients",
    "allocator",
    "evaluation_pass",
    "graph",
];

pub(crate) const TOKENS: [(&str, Tokens); 1] = [("bytes", Tokens::Bytes)];
pub(crate) const DECAY: [(&str, Decay); 2] = [("matrices", Decay::Matrices), ("all", Decay::All)];
pub(crate) const RECOMPUTE: [(&str, Recompute); 2] = [("none", Recompute::None), ("block", Recompute::Block)];
pub(crate) const RELEASE: [(&str, Release); 3] =
    [("eager", Release::Eager), ("scope", Release::Scope), ("step", Release::Step)];
pub(crate) const GRADIENTS: [(&str, Gradients); 2] = [("free", Gradients::Free), ("zero", Gradients::Zero)];
pub(crate) const ALLOCATOR: [(&str, Allocator); 2] =
    [("arena", Allocator::Arena), ("direct", Allocator::Direct)];
pub(crate) const EVALUATION_PASS: [(&str, EvaluationPass); 2] =
    [("no_grad", EvaluationPass::NoGrad), ("grad", EvaluationPass::Grad)];
pub(crate) const PRECISION: [(&str, Precision); 4] = [
    ("fp32", Precision::Fp32),
    ("tf32", Precision::Tf32),
    ("bf16", Precision::Bf16),
    ("fp16", Precision::Fp16),
];

/// Bounds that keep products of sizes within 64 bits; no machine comes near them.
const LAYERS: Count = Count(1..=1 << 14);
const DIMENSION: Count = Count(1..=1 << 24);
pub(crate) const STEPS: Count = Count(1..=1 << 17);
const STEPS_OR_NONE: Count = Count(0..=1 << 17);
pub(crate) const REPEATS: Count = Count(1..=1000);
/// What TOML integers reach.
const SEED: Whole = Whole(0..=i64::MAX as u64);
const BETA: Number = DECAY_RATE;

/// The tables that every file may have. Each is `None` where something in it is wrong or missing.
pub(crate) struct Sections {
    model: Option<Model>,
    data: Option<Data>,
    train: Option<Train>,
    evaluation: Option<Option<Evaluation>>,
    measure: Option<Measure>,
    pub(crate) repeats: Option<usize>,
}

/// Reads one run, whose strategy keys are in a table of their own.
pub(crate) fn run(reader: &Reader<'_>, tree: &Table) -> Option<RunConfig> {
    let mut keys = reader.keys(tree, "", "the experiment");
    let sections = sections(&mut keys);
    let none = Table::default();
    let mut own =
        keys.table(STRATEGY, "", "the strategy").unwrap_or_else(|| reader.keys(&none, "", "the strategy"));
    let strategy = strategy(&mut own);
    own.finish();
    keys.finish();
    Some(RunConfig {
        model: sections.model?,
        data: sections.data?,
        train: sections.train?,
        evaluation: sections.evaluation?,
        measure: sections.measure?,
        strategy: strategy?,
    })
}

pub(crate) fn sections(keys: &mut Keys<'_>) -> Sections {
    let model = keys.required_table("model", "model", "[model]", "[model.transformer]").and_then(model);
    let data = keys.required_table("data", "data", "[data]", "[data.text]").and_then(data);
    let train = keys.required_table("train", "train", "[train]", "[train]").and_then(train);
    let evaluation = match keys.table("evaluation", "evaluation", "[evaluation]") {
        Some(keys) => evaluation(keys).map(Some),
        None => Some(None),
    };
    let (measure, repeats) = match keys.table("measure", "measure", "[measure]") {
        Some(keys) => measure(keys),
        None => (Some(Measure { warmup_steps: WARMUP_STEPS, steps: TIMED_STEPS }), Some(1)),
    };
    Sections { model, data, train, evaluation, measure, repeats }
}

fn model(keys: Keys<'_>) -> Option<Model> {
    let (_, keys) = keys.variant(&[("transformer", "model.transformer", "[model.transformer]")])?;
    transformer(keys).map(Model::Transformer)
}

fn transformer(mut keys: Keys<'_>) -> Option<Transformer> {
    let layers = keys.required("layers", LAYERS);
    let d_model = keys.required("d_model", DIMENSION);
    let heads = keys.required("heads", DIMENSION);
    let context = keys.required("context", DIMENSION);
    // Without its own, the vocabulary is the data's; tokens have one meaning so far.
    let vocabulary = keys.or("vocabulary", Tokens::Bytes.vocabulary(), DIMENSION);
    keys.finish();
    Some(Transformer {
        layers: layers?,
        d_model: d_model?,
        heads: heads?,
        context: context?,
        vocabulary: vocabulary?,
    })
}

fn data(keys: Keys<'_>) -> Option<Data> {
    let (_, keys) = keys.variant(&[("text", "data.text", "[data.text]")])?;
    text(keys).map(Data::Text)
}

fn text(mut keys: Keys<'_>) -> Option<Text> {
    let paths = text_paths(&mut keys);
    let tokens = keys.or("tokens", Tokens::Bytes, Word(&TOKENS));
    let split = keys.or("split", 0.9, SHARE);
    keys.finish();
    Some(Text { paths: paths?, tokens: tokens?, split: split? })
}

fn text_paths(keys: &mut Keys<'_>) -> Option<Vec<PathBuf>> {
    let expected = "a list of paths, such as [\"../src/**/*.rs\"]";
    let Some(entry) = keys.entry("paths") else {
        keys.missing("paths", "paths = [\"../src/**/*.rs\"]");
        return None;
    };
    let mismatch = |node: &Node| {
        Problem::new(format!("`data.text.paths` must be {expected}, not {}", node.value)).at(node.span)
    };
    let reader = keys.reader();
    match &entry.node.value {
        Value::List(nodes) if !nodes.is_empty() => {
            let mut paths = Vec::new();
            for node in nodes {
                match &node.value {
                    Value::Text(text) if !text.is_empty() => {
                        paths.push(text_path(reader, node, text).map_err(|p| reader.problem(p)).ok())
                    }
                    _ => {
                        reader.problem(mismatch(node));
                        paths.push(None);
                    }
                }
            }
            paths.into_iter().collect()
        }
        _ => {
            reader.problem(mismatch(&entry.node));
            None
        }
    }
}

/// A path or glob, its variables replaced, relative to the file that wrote it.
fn text_path(reader: &Reader<'_>, node: &Node, text: &str) -> Result<PathBuf, Problem> {
    let expanded = paths::expand_variables(text, reader.environment)
        .map_err(|(message, help)| Problem::new(message).at(node.span).help(help))?;
    let path = paths::absolute(reader.sources.directory(node.span), &expanded);
    if path.to_str().is_none() {
        return Err(Problem::new("the path of the experiment is not UTF-8 text").at(node.span));
    }
    glob::Pattern::new(&path.to_string_lossy()).map_err(|error| {
        Problem::new(format!("`{text}` is not a path with wildcards: {}", error.msg))
            .at(node.span)
            .help("`*` stands for part of a name, `**` for any folders, `[ab]` for one of some characters")
    })?;
    Ok(path)
}

fn train(mut keys: Keys<'_>) -> Option<Train> {
    let batch_size = keys.required("batch_size", DIMENSION);
    let clip_norm = keys.optional("clip_norm", POSITIVE);
    let seed = keys.or("seed", 0, SEED);
    let optimizer = keys
        .required_table("optimizer", "train.optimizer", "[train.optimizer]", "[train.optimizer.adamw]")
        .and_then(|keys| keys.variant(&[("adamw", "train.optimizer.adamw", "[train.optimizer.adamw]")]))
        .and_then(|(_, keys)| adamw(keys));
    keys.finish();
    Some(Train {
        batch_size: batch_size?,
        clip_norm: clip_norm?,
        seed: seed?,
        optimizer: Optimizer::AdamW(optimizer?),
    })
}

fn adamw(mut keys: Keys<'_>) -> Option<AdamW> {
    let lr = keys.required("lr", POSITIVE);
    let beta1 = keys.or("beta1", 0.9, BETA);
    let beta2 = keys.or("beta2", 0.999, BETA);
    let epsilon = keys.or("epsilon", 1e-8, POSITIVE);
    let weight_decay = keys.or("weight_decay", 0.01, NOT_NEGATIVE);
    let decay = keys.or("decay", Decay::Matrices, Word(&DECAY));
    keys.finish();
    Some(AdamW {
        lr: lr?,
        beta1: beta1?,
        beta2: beta2?,
        epsilon: epsilon?,
        weight_decay: weight_decay?,
        decay: decay?,
    })
}

fn evaluation(mut keys: Keys<'_>) -> Option<Evaluation> {
    let every = keys.or("every", 10, STEPS);
    let batches = keys.or("batches", 1, STEPS);
    keys.finish();
    Some(Evaluation { every: every?, batches: batches? })
}

const WARMUP_STEPS: usize = 3;
const TIMED_STEPS: usize = 20;

fn measure(mut keys: Keys<'_>) -> (Option<Measure>, Option<usize>) {
    let warmup_steps = keys.or("warmup_steps", WARMUP_STEPS, STEPS_OR_NONE);
    let steps = keys.or("steps", TIMED_STEPS, STEPS);
    let repeats = keys.or("repeats", 1, REPEATS);
    keys.finish();
    (warmup_steps.zip(steps).map(|(warmup_steps, steps)| Measure { warmup_steps, steps }), repeats)
}

/// Reads a strategy's own keys, leaving others to the caller.
pub(crate) fn strategy(keys: &mut Keys<'_>) -> Option<Strategy> {
    let default = Strategy::default();
    let accumulate = keys.or("accumulate", default.accumulate, DIMENSION);
    let precision = keys.or("precision", default.precision, Word(&PRECISION));
    let loss_scale = loss_scale::read(keys, precision);
    let recompute = keys.or("recompute", default.recompute, Word(&RECOMPUTE));
    let release = keys.or("release", default.release, Word(&RELEASE));
    let gradients = keys.or("gradients", default.gradients, Word(&GRADIENTS));
    let allocator = keys.or("allocator", default.allocator, Word(&ALLOCATOR));
    let evaluation_pass = keys.or("evaluation_pass", default.evaluation_pass, Word(&EVALUATION_PASS));
    let graph = keys.or("graph", default.graph, Flag);
    Some(Strategy {
        accumulate: accumulate?,
        precision: precision?,
        loss_scale: loss_scale?,
        recompute: recompute?,
        loss_chunks: default.loss_chunks,
        release: release?,
        gradients: gradients?,
        allocator: allocator?,
        evaluation_pass: evaluation_pass?,
        graph: graph?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::source::Sources;
    use super::*;

    #[test]
    fn the_list_of_strategy_keys_is_what_is_read() {
        let sources = Sources::default();
        let environment = |_: &str| None;
        let reader = Reader::complete(&sources, &environment);
        let table = Table::default();
        let mut keys = reader.keys(&table, "", "");
        strategy(&mut keys);
        assert_eq!(keys.asked(), STRATEGY_KEYS);
    }
}
