//! From the strategies of a file to those of the table: what they extend, and what sweeps inside them make of them.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::error::Problem;
use super::key::Key;
use super::reader::no_strategy;
use super::source::Span;
use super::tree::{Setting, Value};
use super::written::{Axis, WrittenStrategy};

/// Completes strategies with what they extend, each once.
pub(crate) fn inherit(written: &[WrittenStrategy]) -> Result<Vec<WrittenStrategy>, Vec<Problem>> {
    let places: HashMap<&str, usize> =
        written.iter().enumerate().map(|(place, strategy)| (strategy.name.as_str(), place)).collect();
    bases_exist(written, &places)?;
    let mut whole: Vec<Option<WrittenStrategy>> = vec![None; written.len()];
    for first in 0..written.len() {
        let (chain, mut base) = unfinished(first, written, &places, &whole)?;
        for place in chain.into_iter().rev() {
            let strategy = match base.and_then(|base| whole[base].as_ref()) {
                Some(base) => over(base, &written[place]),
                None => written[place].clone(),
            };
            whole[place] = Some(strategy);
            base = Some(place);
        }
    }
    Ok(whole.into_iter().flatten().collect())
}

fn bases_exist(written: &[WrittenStrategy], places: &HashMap<&str, usize>) -> Result<(), Vec<Problem>> {
    let bases = written.iter().filter_map(|strategy| strategy.extends.as_ref());
    let names: Vec<&str> = written.iter().map(|strategy| strategy.name.as_str()).collect();
    let missing = bases.filter(|(base, _)| !places.contains_key(base.as_str()));
    let problems: Vec<Problem> = missing
        .map(|(base, span)| {
            no_strategy(&format!("there is no strategy `{base}` to extend"), base, *span, &names)
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The strategies that one stands on, itself first, as far as they are not whole; and the one that is, if they stand on one.
fn unfinished(
    first: usize,
    written: &[WrittenStrategy],
    places: &HashMap<&str, usize>,
    whole: &[Option<WrittenStrategy>],
) -> Result<(Vec<usize>, Option<usize>), Problem> {
    let (mut chain, mut seen) = (Vec::new(), HashSet::new());
    let mut place = first;
    while whole[place].is_none() {
        chain.push(place);
        seen.insert(place);
        let Some((base, span)) = &written[place].extends else { return Ok((chain, None)) };
        let Some(found) = places.get(base.as_str()) else { return Ok((chain, None)) };
        if seen.contains(found) {
            let names = chain.iter().chain([found]).map(|place| written[*place].name.as_str());
            let circle: Vec<&str> = names.collect();
            return Err(Problem::new(format!(
                "strategies extend each other in a circle: {}",
                circle.join(" -> ")
            ))
            .at(*span)
            .help("remove one of the `extends`"));
        }
        place = *found;
    }
    Ok((chain, Some(place)))
}

/// A strategy with what it does not say itself from the one that it extends.
fn over(base: &WrittenStrategy, strategy: &WrittenStrategy) -> WrittenStrategy {
    let replaced = |key: &Key| {
        strategy.settings.iter().any(|setting| setting.key.conflicts(key))
            || strategy.axes.iter().any(|axis| axis.key.conflicts(key))
    };
    let settings = base.settings.iter().filter(|setting| !replaced(&setting.key));
    let axes = base.axes.iter().filter(|axis| !replaced(&axis.key));
    WrittenStrategy {
        settings: settings.chain(&strategy.settings).cloned().collect(),
        axes: axes.chain(&strategy.axes).cloned().collect(),
        ..strategy.clone()
    }
}

/// A variant's label may be what another strategy is called.
pub(crate) fn distinct_labels(strategies: &[WrittenStrategy]) -> Result<(), Vec<Problem>> {
    let mut known: BTreeMap<String, Span> = BTreeMap::new();
    let mut problems = Vec::new();
    for strategy in strategies {
        for label in strategy.labels() {
            let problem = Problem::new(format!("two strategies are called `{label}`"));
            if let Some(span) = known.insert(label, strategy.span) {
                problems.push(problem.at(strategy.span).at(span).help("rename one of them"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

impl WrittenStrategy {
    /// One strategy for each combination of the axes inside it, the last axis fastest: its label and what it sets.
    pub fn variants(&self) -> Vec<(String, Vec<&Setting>)> {
        let named = |values: &[&Setting]| {
            let words: Vec<String> = values.iter().map(|value| label(value)).collect();
            let slash = if words.is_empty() { "" } else { "/" };
            format!("{}{slash}{}", self.name, words.join(","))
        };
        combinations(&self.axes).into_iter().map(|values| (named(&values), values)).collect()
    }

    /// The names of its variants.
    pub(crate) fn labels(&self) -> Vec<String> {
        self.variants().into_iter().map(|(label, _)| label).collect()
    }
}

/// Every value with every value, the last axis fastest.
pub fn combinations(axes: &[Axis]) -> Vec<Vec<&Setting>> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        let longer = |point: &Vec<_>, value| [point.as_slice(), &[value]].concat();
        points = points.iter().flat_map(|point| axis.values.iter().map(|v| longer(point, v))).collect();
    }
    points
}

/// `accumulate=2`, as labels show it.
fn label(setting: &Setting) -> String {
    match &setting.node.value {
        Value::Text(text) => format!("{}={text}", setting.key),
        value => format!("{}={value}", setting.key),
    }
}
