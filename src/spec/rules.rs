//! Rules between keys. Each blames all keys that take part, and names a value that works.

use super::error::Problem;
use super::reader::join;
use super::resolved::*;
use super::sections::{ALLOCATOR, PRECISION};
use super::tree::Table;
use super::write::word;

/// Checks a configuration whose keys are each in their range; `tree` is where they were written.
pub(crate) fn check(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let Model::Transformer(model) = &config.model;
    heads_divide_d_model(model, tree)?;
    micro_batch_divides_batch(config, tree)?;
    vocabulary_holds_tokens(config, model, tree)?;
    something_to_evaluate(config, tree)?;
    scales_fp16(config, tree)?;
    graphs_need_an_arena(config, tree)?;
    sizes_can_be_counted(config, model, tree)
}

/// A problem blamed on those of the keys that were written.
fn blame(message: String, keys: &[&str], tree: &Table, help: impl Into<String>) -> Problem {
    let mut problem = Problem::new(message).help(help);
    problem.places.extend(keys.iter().filter_map(|key| tree.find(key)).map(|entry| entry.span()));
    problem
}

fn heads_divide_d_model(model: &Transformer, tree: &Table) -> Result<(), Problem> {
    let Transformer { heads, d_model, .. } = *model;
    if d_model.is_multiple_of(heads) {
        return Ok(());
    }
    Err(blame(
        format!("model.transformer.heads = {heads} does not divide model.transformer.d_model = {d_model}"),
        &["model.transformer.heads", "model.transformer.d_model"],
        tree,
        divisors(d_model, heads),
    ))
}

fn micro_batch_divides_batch(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let (batch, accumulate) = (config.train.batch_size, config.strategy.accumulate);
    if batch.is_multiple_of(accumulate) {
        return Ok(());
    }
    Err(blame(
        format!("accumulate = {accumulate} does not divide train.batch_size = {batch}"),
        &["strategy.accumulate", "train.batch_size"],
        tree,
        divisors(batch, accumulate),
    ))
}

/// "1, 2, 4 and 8 do", or where there are many the nearest to what was asked for.
fn divisors(number: usize, wanted: usize) -> String {
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

fn vocabulary_holds_tokens(config: &RunConfig, model: &Transformer, tree: &Table) -> Result<(), Problem> {
    let Data::Text(text) = &config.data;
    let needed = text.tokens.vocabulary();
    if model.vocabulary >= needed {
        return Ok(());
    }
    Err(blame(
        format!(
            "model.transformer.vocabulary = {} is less than the {needed} tokens of data.text",
            model.vocabulary
        ),
        &["model.transformer.vocabulary", "data.text.tokens"],
        tree,
        format!("{needed} and more work"),
    ))
}

fn something_to_evaluate(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let Data::Text(text) = &config.data;
    if text.split < 1.0 || config.evaluation.is_none() {
        return Ok(());
    }
    Err(blame(
        "data.text.split = 1 leaves nothing to evaluate on".to_string(),
        &["data.text.split", "evaluation"],
        tree,
        "0.9 does, or evaluation = \"off\"",
    ))
}

fn scales_fp16(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let Strategy { precision, loss_scale, .. } = config.strategy;
    if loss_scale.is_none() || precision == Precision::Fp16 {
        return Ok(());
    }
    let name = word(&PRECISION, &precision);
    Err(blame(
        format!("loss_scale keeps fp16 gradients from vanishing; precision = {name} has no use for it"),
        &["strategy.loss_scale", "strategy.precision"],
        tree,
        "precision = \"fp16\" has, or loss_scale = \"off\"",
    ))
}

/// A captured stretch holds the addresses of its values.
fn graphs_need_an_arena(config: &RunConfig, tree: &Table) -> Result<(), Problem> {
    let Strategy { graph, allocator, .. } = config.strategy;
    if !graph || allocator == Allocator::Arena {
        return Ok(());
    }
    let name = word(&ALLOCATOR, &allocator);
    Err(blame(
        format!("graph = true replays work on the same addresses; allocator = {name} gives others each time"),
        &["strategy.graph", "strategy.allocator"],
        tree,
        "allocator = \"arena\" does, or graph = false",
    ))
}

/// Bytes and operations of a step are counted in 64 bits. The sums here are upper bounds, with room for every
/// strategy.
fn sizes_can_be_counted(config: &RunConfig, model: &Transformer, tree: &Table) -> Result<(), Problem> {
    let wide = |size: usize| size as u128;
    let Transformer { layers, d_model, heads, context, vocabulary } = *model;
    let [layers, channels, heads, context, vocabulary] =
        [layers, d_model, heads, context, vocabulary].map(wide);
    let parameters = channels * (vocabulary + context + 2) + layers * channels * (12 * channels + 13);
    const MODEL_KEYS: [&str; 5] = [
        "model.transformer.d_model",
        "model.transformer.layers",
        "model.transformer.heads",
        "model.transformer.context",
        "model.transformer.vocabulary",
    ];
    if parameters > 1 << 40 {
        return Err(blame(
            format!("the model would have {parameters} parameters"),
            &MODEL_KEYS,
            tree,
            "up to 2^40, about 10^12, work",
        ));
    }
    let tokens = wide(config.train.batch_size) * context;
    let activations = tokens * (layers * (32 * channels + 4 * heads * context) + 4 * vocabulary);
    let work = 16 * tokens * (parameters + layers * context * channels);
    if activations > 1 << 57 || work > 1 << 62 {
        return Err(blame(
            format!("one step of {tokens} tokens would be more than can be counted"),
            &["train.batch_size", "model.transformer.context"],
            tree,
            "use smaller batches, shorter sequences or a smaller model",
        ));
    }
    Ok(())
}
