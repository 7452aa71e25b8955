//! From the strategies of a file to those of the table: what they extend, and what sweeps inside them make of them.

use std::collections::BTreeMap;

use super::error::Problem;
use super::key::Key;
use super::reader::no_strategy;
use super::source::Span;
use super::tree::{Setting, Value};
use super::written::{Axis, WrittenStrategy};

/// Completes strategies with what they extend.
pub(crate) fn inherit(written: &[WrittenStrategy]) -> Result<Vec<WrittenStrategy>, Problem> {
    written.iter().map(|strategy| complete(strategy, written, &mut Vec::new())).collect()
}

fn complete<'w>(
    strategy: &'w WrittenStrategy,
    all: &'w [WrittenStrategy],
    above: &mut Vec<&'w str>,
) -> Result<WrittenStrategy, Problem> {
    let Some((base, span)) = &strategy.extends else { return Ok(strategy.clone()) };
    above.push(&strategy.name);
    if above.contains(&base.as_str()) {
        let chain: Vec<&str> = above.iter().copied().chain([base.as_str()]).collect();
        return Err(Problem::new(format!(
            "strategies extend each other in a circle: {}",
            chain.join(" -> ")
        ))
        .at(*span)
        .help("remove one of the `extends`"));
    }
    let Some(found) = all.iter().find(|other| other.name == *base) else {
        let names: Vec<&str> = all.iter().map(|other| other.name.as_str()).collect();
        return Err(no_strategy(&format!("there is no strategy `{base}` to extend"), base, *span, &names));
    };
    let mut whole = complete(found, all, above)?;
    let replaced = |key: &Key| {
        strategy.settings.iter().any(|setting| setting.key.conflicts(key))
            || strategy.axes.iter().any(|axis| axis.key.conflicts(key))
    };
    whole.settings.retain(|setting| !replaced(&setting.key));
    whole.axes.retain(|axis| !replaced(&axis.key));
    whole.settings.extend(strategy.settings.iter().cloned());
    whole.axes.extend(strategy.axes.iter().cloned());
    Ok(WrittenStrategy { settings: whole.settings, axes: whole.axes, ..strategy.clone() })
}

/// A variant's label may be what another strategy is called.
pub(crate) fn distinct_labels(strategies: &[WrittenStrategy]) -> Result<(), Problem> {
    let mut known: BTreeMap<String, Span> = BTreeMap::new();
    for strategy in strategies {
        for label in strategy.labels() {
            let problem = Problem::new(format!("two strategies are called `{label}`"));
            if let Some(span) = known.insert(label, strategy.span) {
                return Err(problem.at(strategy.span).at(span).help("rename one of them"));
            }
        }
    }
    Ok(())
}

impl WrittenStrategy {
    /// One strategy for each combination of the axes inside it, the last axis fastest: its label and what it sets.
    pub(crate) fn variants(&self) -> Vec<(String, Vec<&Setting>)> {
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
pub(crate) fn combinations(axes: &[Axis]) -> Vec<Vec<&Setting>> {
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
