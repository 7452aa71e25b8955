//! Inheritance between strategies, and the variants that their own sweeps produce.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::written::{Axis, WrittenStrategy};
use crate::reader::error::Problem;
use crate::reader::hints::{nearest, similar};
use crate::reader::source::Span;
use crate::reader::tree::Value;
use crate::schema::key::Key;
use crate::schema::settings::Setting;

/// Adds the inherited keys to each strategy.
pub(crate) fn inherit(written: &[WrittenStrategy]) -> Result<Vec<WrittenStrategy>, Vec<Problem>> {
    let indices: HashMap<&str, usize> =
        written.iter().enumerate().map(|(index, strategy)| (strategy.name.as_str(), index)).collect();
    bases_exist(written, &indices)?;
    let mut complete: Vec<Option<WrittenStrategy>> = vec![None; written.len()];
    for first in 0..written.len() {
        let (chain, mut base) = incomplete_chain(first, written, &indices, &complete)?;
        for index in chain.into_iter().rev() {
            let strategy = match base.and_then(|base| complete[base].as_ref()) {
                Some(base) => inherit_from(base, &written[index]),
                None => written[index].clone(),
            };
            complete[index] = Some(strategy);
            base = Some(index);
        }
    }
    Ok(complete.into_iter().flatten().collect())
}

fn bases_exist(written: &[WrittenStrategy], indices: &HashMap<&str, usize>) -> Result<(), Vec<Problem>> {
    let bases = written.iter().filter_map(|strategy| strategy.extends.as_ref());
    let names: Vec<&str> = written.iter().map(|strategy| strategy.name.as_str()).collect();
    let missing = bases.filter(|(base, _)| !indices.contains_key(base.as_str()));
    let problems: Vec<Problem> = missing
        .map(|(base, span)| {
            no_strategy(&format!("there is no strategy `{base}` to extend"), base, *span, &names)
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The chain of strategies to complete before `first`, itself first; and the complete strategy that the chain extends,
/// if any.
fn incomplete_chain(
    first: usize,
    written: &[WrittenStrategy],
    indices: &HashMap<&str, usize>,
    complete: &[Option<WrittenStrategy>],
) -> Result<(Vec<usize>, Option<usize>), Problem> {
    let (mut chain, mut seen) = (Vec::new(), HashSet::new());
    let mut index = first;
    while complete[index].is_none() {
        chain.push(index);
        seen.insert(index);
        let Some((base, span)) = &written[index].extends else { return Ok((chain, None)) };
        let Some(found) = indices.get(base.as_str()) else { return Ok((chain, None)) };
        if seen.contains(found) {
            let names = chain.iter().chain([found]).map(|index| written[*index].name.as_str());
            let cycle: Vec<&str> = names.collect();
            return Err(Problem::new(format!(
                "strategies extend each other in a cycle: {}",
                cycle.join(" -> ")
            ))
            .at(*span)
            .help("remove one of the `extends`"));
        }
        index = *found;
    }
    Ok((chain, Some(index)))
}

/// A strategy with the keys that it inherits from `base`.
fn inherit_from(base: &WrittenStrategy, strategy: &WrittenStrategy) -> WrittenStrategy {
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

/// Labels are unique: a variant's label may equal another strategy's name.
pub(crate) fn distinct_labels(strategies: &[WrittenStrategy]) -> Result<(), Vec<Problem>> {
    let mut known: BTreeMap<String, Span> = BTreeMap::new();
    let mut problems = Vec::new();
    for strategy in strategies {
        for label in strategy.labels() {
            let problem = Problem::new(format!("duplicate strategy name `{label}`"));
            if let Some(span) = known.insert(label, strategy.span) {
                problems.push(problem.at(strategy.span).at(span).help("rename one of them"));
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

impl WrittenStrategy {
    /// One variant for each combination of the values of its axes, the last axis fastest: its label and its settings.
    pub fn variants(&self) -> Vec<(String, Vec<&Setting>)> {
        let named = |values: &[&Setting]| {
            let words: Vec<String> = values.iter().map(|value| label(value)).collect();
            let slash = if words.is_empty() { "" } else { "/" };
            format!("{}{slash}{}", self.name, words.join(","))
        };
        combinations(&self.axes).into_iter().map(|values| (named(&values), values)).collect()
    }

    /// This strategy on top of other settings.
    pub fn extending(&self, settings: Vec<Setting>) -> WrittenStrategy {
        inherit_from(&WrittenStrategy { settings, axes: Vec::new(), ..self.clone() }, self)
    }

    /// The names of its variants.
    pub(crate) fn labels(&self) -> Vec<String> {
        self.variants().into_iter().map(|(label, _)| label).collect()
    }
}

/// The Cartesian product of the axes' values, the last axis fastest.
pub fn combinations(axes: &[Axis]) -> Vec<Vec<&Setting>> {
    let mut points = vec![Vec::new()];
    for axis in axes {
        let longer = |point: &Vec<_>, value| [point.as_slice(), &[value]].concat();
        points = points.iter().flat_map(|point| axis.values.iter().map(|v| longer(point, v))).collect();
    }
    points
}

/// A setting in a label: `accumulate=2`.
fn label(setting: &Setting) -> String {
    match &setting.node.value {
        Value::Text(text) => format!("{}={text}", setting.key),
        value => format!("{}={value}", setting.key),
    }
}

/// A problem about an unknown strategy name, with the nearest known names as a hint.
pub(super) fn no_strategy(message: &str, name: &str, span: Span, known: &[&str]) -> Problem {
    Problem::new(message).at(span).help(match nearest(name, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => similar(name, known),
    })
}
