//! `[sweep.ablate]`: strategies that have some of the keys of one strategy, to attribute its effect to its keys.
//!
//! A label is the strategy's name, a slash, and the keys that are added to none (`lean/+precision`) or removed from all
//! (`lean/-precision`). `compare --ladder` reads these labels.

use super::strategies::no_strategy;
use super::written::WrittenStrategy;
use crate::reader::declare::KeyTable as _;
use crate::reader::error::Problem;
use crate::reader::hints::similar;
use crate::reader::keys::Keys;
use crate::reader::source::Span;
use crate::schema::ablation::{Ablation, AblationRows};
use crate::schema::key::{Key, STRATEGY, is_choice};
use crate::schema::settings::Setting;

/// The table, and where it and its keys were written.
#[derive(Clone, Debug)]
pub(crate) struct WrittenAblation {
    /// `None` without a strategy: another file may name it.
    table: Option<Ablation>,
    span: Span,
    strategy: Span,
    together: Span,
}

impl WrittenAblation {
    pub(crate) fn read(keys: &mut Keys<'_>, span: Span) -> WrittenAblation {
        let mut span_of = |key| keys.entry(key).map_or(span, |entry| entry.node.span);
        let (strategy, together) = (span_of("strategy"), span_of("together"));
        WrittenAblation { table: Ablation::read(keys), span, strategy, together }
    }

    /// Adds the rows of the ablation before its strategy, which is the row with all keys.
    pub(crate) fn expand(&self, strategies: Vec<WrittenStrategy>) -> Result<Vec<WrittenStrategy>, Problem> {
        let Some(table) = &self.table else {
            return Err(Problem::new("`sweep.ablate.strategy` is missing: every ablation needs it")
                .at(self.span)
                .help("add strategy = \"NAME\""));
        };
        let name = &table.strategy;
        let Some(at) = strategies.iter().position(|strategy| strategy.name == *name) else {
            let names: Vec<&str> = strategies.iter().map(|strategy| strategy.name.as_str()).collect();
            return Err(no_strategy(
                &format!("there is no strategy `{name}` to ablate"),
                name,
                self.strategy,
                &names,
            ));
        };
        let units = table.units(&strategies[at]).map_err(|problem| problem.at(self.together))?;
        if units.len() < 2 {
            let keys = if units.is_empty() { "no key" } else { "one key only" };
            return Err(Problem::new(format!("the strategy `{name}` has {keys} to ablate"))
                .at(self.strategy)
                .help("an ablation needs two keys or more"));
        }
        let mut expanded = strategies;
        let rows: Vec<WrittenStrategy> =
            table.subsets(units.len()).iter().map(|subset| partial(&expanded[at], &units, subset)).collect();
        expanded.splice(at..at, rows);
        Ok(expanded)
    }
}

impl Ablation {
    /// The parts of the strategy that are added and removed as a whole.
    fn units(&self, strategy: &WrittenStrategy) -> Result<Vec<Unit>, Problem> {
        let mut units: Vec<Unit> = Vec::new();
        for setting in &strategy.settings {
            let name = self.unit_of(&setting.key);
            match units.iter_mut().find(|unit| unit.name == name) {
                Some(unit) => unit.settings.push(setting.clone()),
                None => units.push(Unit { name, settings: vec![setting.clone()] }),
            }
        }
        for written in self.together.iter().flatten() {
            let key = Key::new(written);
            let is_set = |setting: &Setting| setting.key == key || setting.key.is_below(&key);
            if !strategy.settings.iter().any(is_set) {
                let keys: Vec<String> =
                    strategy.settings.iter().map(|setting| setting.key.to_string()).collect();
                let known: Vec<&str> = keys.iter().map(String::as_str).collect();
                let name = &strategy.name;
                return Err(Problem::new(format!(
                    "`sweep.ablate.together` lists `{written}`, which `{name}` does not set"
                ))
                .help(similar(written, &known)));
            }
            if self.lists_with(&key).count() > 1 {
                return Err(Problem::new(format!("`sweep.ablate.together` has `{written}` in two lists"))
                    .help("keep it in one of them"));
            }
        }
        Ok(units)
    }

    /// The lists of `together` that contain a key, a table above it, or a key below it.
    fn lists_with(&self, key: &Key) -> impl Iterator<Item = &Vec<String>> {
        let overlaps = |written: &String| {
            let other = Key::new(written);
            other == *key || key.is_below(&other) || other.is_below(key)
        };
        self.together.iter().filter(move |list| list.iter().any(overlaps))
    }

    /// The name of the unit of a key: the first key of its list; without a list its table in the strategy, the choice
    /// that it belongs to, or itself.
    fn unit_of(&self, key: &Key) -> String {
        let contains = |written: &String| {
            let other = Key::new(written);
            other == *key || key.is_below(&other)
        };
        if let Some(list) = self.together.iter().find(|list| list.iter().any(contains)) {
            return Key::new(&list[0]).to_string();
        }
        let segments = key.segments();
        if segments[0] == STRATEGY && segments.len() > 1 {
            return segments[1].clone();
        }
        let choice = (1..segments.len()).find(|end| is_choice(&segments[..*end]));
        choice.map_or_else(|| key.to_string(), |end| segments[..end].join("."))
    }

    /// The rows before that of the whole strategy. Equal sets of units have the same run, and a label each.
    fn subsets(&self, units: usize) -> Vec<AblationLabel<usize>> {
        let pairs = (0..units).flat_map(|one| (one + 1..units).map(move |other| vec![one, other]));
        let rows = [
            (AblationRows::Alone, (0..units).map(|unit| AblationLabel::Only(vec![unit])).collect()),
            (AblationRows::Pairs, pairs.map(AblationLabel::Only).collect()),
            (AblationRows::LeaveOneOut, (0..units).map(AblationLabel::Without).collect::<Vec<_>>()),
        ];
        // The effect of a pair is compared with those of its keys.
        let needed = |kind| kind == AblationRows::Alone && self.rows.contains(&AblationRows::Pairs);
        let wanted = rows.into_iter().filter(|(kind, _)| self.rows.contains(kind) || needed(*kind));
        let none = AblationLabel::Only(Vec::new());
        [none].into_iter().chain(wanted.flat_map(|(_, rows)| rows)).collect()
    }
}

/// Keys of a strategy that are added and removed together.
struct Unit {
    name: String,
    settings: Vec<Setting>,
}

fn partial(strategy: &WrittenStrategy, units: &[Unit], subset: &AblationLabel<usize>) -> WrittenStrategy {
    let label = subset.map(|unit| units[*unit].name.as_str());
    let settings =
        subset.units(units.len()).into_iter().flat_map(|unit| units[unit].settings.clone()).collect();
    WrittenStrategy {
        name: format!("{}/{label}", strategy.name),
        settings,
        is_partial: true,
        ..strategy.clone()
    }
}

/// The end of the label of a row with some of the units of a strategy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AblationLabel<U> {
    /// `none`, `+precision`, `+precision+recompute`
    Only(Vec<U>),
    /// `-precision`
    Without(U),
}

impl<U> AblationLabel<U> {
    fn map<'a, V>(&'a self, each: impl Fn(&'a U) -> V) -> AblationLabel<V> {
        match self {
            AblationLabel::Only(units) => AblationLabel::Only(units.iter().map(each).collect()),
            AblationLabel::Without(unit) => AblationLabel::Without(each(unit)),
        }
    }
}

impl AblationLabel<usize> {
    /// The units of the row, in order.
    fn units(&self, all: usize) -> Vec<usize> {
        match self {
            AblationLabel::Only(units) => units.clone(),
            AblationLabel::Without(without) => (0..all).filter(|unit| unit != without).collect(),
        }
    }
}

impl std::fmt::Display for AblationLabel<&str> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AblationLabel::Only(units) if units.is_empty() => f.write_str("none"),
            AblationLabel::Only(units) => units.iter().try_for_each(|unit| write!(f, "+{unit}")),
            AblationLabel::Without(unit) => write!(f, "-{unit}"),
        }
    }
}

impl<'a> AblationLabel<&'a str> {
    /// Splits the label of a row into the strategy's name and the units; `None` for other labels.
    pub fn of(label: &'a str) -> Option<(&'a str, AblationLabel<&'a str>)> {
        let (name, end) = label.rsplit_once('/')?;
        let units = match end.split_at_checked(1)? {
            _ if end == "none" => AblationLabel::Only(Vec::new()),
            ("+", units) => AblationLabel::Only(units.split('+').collect()),
            ("-", unit) => AblationLabel::Without(unit),
            _ => return None,
        };
        Some((name, units))
    }
}
