//! Rules between keys. Each blames all keys that take part, and names a value that works. Those between keys of one
//! table stand with it.

use super::declare::Words as _;
use super::error::Problem;
use super::model::decides;
use super::reader::join;
use super::resolved::RunConfig;
use super::strategy::{FORBIDDEN, Forbidden, LoadedAs, LoadedFrom, Loader, Refusal};
use super::tree::Table;
use data::Documents;

/// Checks a configuration whose keys are each in their range; `tree` is where they were written.
pub(crate) fn check(config: &RunConfig, tree: &Table) -> Result<(), Vec<Problem>> {
    let RunConfig { model, data, train, evaluation, measure: _, strategy, tokens: _ } = config;
    let problems: Vec<Problem> = [
        model.check(tree),
        every_micro_batch_has_a_sequence(config, tree),
        data.check(tree),
        data_suits_model(config, tree),
        ids_fit(config, tree),
        what_is_held_is_a_row(config, tree),
        what_is_shuffled_has_an_end(config, tree),
        documents_are_seen_from_the_front(config, tree),
        if evaluation.is_some() { data.leaves_some_to_evaluate(tree) } else { Ok(()) },
        train.optimizer.check(tree),
        if config.trains() { train.schedule.check(config.steps(), tree) } else { Ok(()) },
        strategy.segments_have_blocks(model.blocks(), tree),
    ]
    .into_iter()
    .filter_map(Result::err)
    .chain(forbidden(config, tree))
    .collect();
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(model.sizes_can_be_counted(train.batch_size, tree)?)
}

/// What does not go together.
fn forbidden(config: &RunConfig, tree: &Table) -> impl Iterator<Item = Problem> {
    FORBIDDEN.iter().filter_map(|Forbidden { keys, found }| {
        let Refusal { why, works } = found(config)?;
        Some(blame(why, keys, tree, works))
    })
}

/// A problem blamed on those of the keys that were written, or on what was written instead.
pub fn blame(message: String, keys: &[&str], tree: &Table, help: impl Into<String>) -> Problem {
    let mut problem = Problem::new(message).help(help);
    let written = |key: &&str| tree.find(key).or_else(|| tree.find(&decides(key)?));
    for entry in keys.iter().filter_map(written) {
        if !problem.places.contains(&entry.span()) {
            problem.places.push(entry.span());
        }
    }
    problem
}

/// What is known of data before it is read; the rest is told once it was.
fn data_suits_model(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let known = config.data.data_set().check_known(&config.sample());
    known.map_err(|error| blame(error.to_string(), &error.keys(), tree, error.help()))
}

/// Ids fit into the type that they are loaded in: those that the data has, if it says so, or else those that the model takes.
fn ids_fit(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (Loader { dtype, source, .. }, data_set) = (config.strategy.loader, config.data.data_set());
    for part in config.sample().parts {
        let Some(asked) = part.below else { continue };
        // On the device, what a sample is missing shows in the place of it.
        let masks = config.documents().mask(part.name) && source != LoadedFrom::Device;
        let known = data_set.below(part.name).filter(|known| known.count <= asked.count).unwrap_or(asked);
        if known.count <= dtype.holds(masks) {
            continue;
        }
        let why = match known.count - 1 {
            largest if masks => {
                format!(
                    "loader.dtype = \"{}\" has no room for ids up to {largest} and one for what is masked",
                    dtype.word()
                )
            }
            largest => format!("loader.dtype = \"{}\" has no room for ids up to {largest}", dtype.word()),
        };
        let fits: Vec<String> = LoadedAs::ALL
            .iter()
            .filter(|other| known.count <= other.holds(masks))
            .map(|other| format!("\"{}\"", other.word()))
            .collect();
        let verb = if fits.len() == 1 { "does" } else { "do" };
        let help = format!("{} {verb}", join(&fits, "and"));
        return Err(blame(why, &["strategy.loader.dtype", known.key], tree, help));
    }
    Ok(())
}

/// Only a row of tokens is held as a whole.
fn what_is_held_is_a_row(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (source, data_set) = (config.strategy.loader.source, config.data.data_set());
    if source == LoadedFrom::Stream || data_set.is_row() {
        return Ok(());
    }
    let documents = "data.text.documents";
    let (what, keys, other) = match config.data.documents() {
        Documents::Joined => {
            (format!("data.{} makes its own", data_set.name()), ["strategy.loader.source", "data"], "")
        }
        _ => (
            format!("{documents} keeps documents apart"),
            ["strategy.loader.source", documents],
            ", or documents = \"joined\"",
        ),
    };
    let why = format!("loader.source = \"{}\" holds one row of tokens, and {what}", source.word());
    Err(blame(why, &keys, tree, format!("source = \"stream\" does{other}")))
}

/// Epochs are of data that has an end.
fn what_is_shuffled_has_an_end(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let data_set = config.data.data_set();
    if !config.train.shuffle || data_set.has_epochs() {
        return Ok(());
    }
    let why = format!("shuffle is of epochs, and data.{} makes samples without end", data_set.name());
    Err(blame(why, &["train.shuffle", "data"], tree, "shuffle = false does, or other data"))
}

/// Padding comes after a document, and other documents are told from it by where it begins.
fn documents_are_seen_from_the_front(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let sees_all = config.model.transformer().is_some_and(|model| !model.causal);
    if config.data.documents() == Documents::Joined || !sees_all {
        return Ok(());
    }
    let message =
        "documents that are padded or packed are seen from their front on, and causal = false sees all"
            .to_owned();
    let keys = ["data.text.documents", "model.transformer.causal"];
    Err(blame(message, &keys, tree, "causal = true does, or documents = \"joined\""))
}

fn every_micro_batch_has_a_sequence(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (batch, accumulate) = (config.train.batch_size, config.strategy.accumulate);
    if accumulate <= batch {
        return Ok(());
    }
    Err(blame(
        format!(
            "accumulate = {accumulate} is more than train.batch_size = {batch}: a micro-batch has at least one sequence"
        ),
        &["strategy.accumulate", "train.batch_size"],
        tree,
        if batch == 1 { "1 does".to_owned() } else { format!("1 to {batch} do") },
    ))
}

/// "1, 2, 4 and 8 do", or where there are many the nearest to what was asked for.
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
    let verb = if all.len() == 1 { "does" } else { "do" };
    let words: Vec<String> = all.iter().map(usize::to_string).collect();
    format!("{} {verb}", join(&words, "and"))
}
