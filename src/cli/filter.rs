//! `--filter` and `--run`: select runs.

use std::collections::BTreeSet;
use std::str::FromStr;

use glob::Pattern;

use super::failure::Failure;
use plan::{Plan, PlannedRun};
use results::Row;

/// A selection of runs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Filter {
    /// Only these strategies, or only these values of a swept key: 'bf16*,plain' or train.batch_size=8. A run must match every
    /// --filter
    #[arg(long = "filter", value_name = "GLOB,KEY=VALUE")]
    all_of: Vec<AnyOf>,
    /// Only the run whose id has this prefix
    #[arg(long = "run", value_name = "ID")]
    ids: Vec<String>,
}

/// One `--filter`: a run matches if it matches any of its patterns.
#[derive(Clone, Debug)]
struct AnyOf(Vec<Wanted>);

#[derive(Clone, Debug)]
struct Wanted {
    text: String,
    name: Pattern,
    /// A swept key and its value.
    point: Option<(String, Pattern)>,
}

impl FromStr for AnyOf {
    type Err = glob::PatternError;

    fn from_str(text: &str) -> Result<AnyOf, glob::PatternError> {
        let wanted = |text: &str| {
            let point = text.split_once('=').map(|(key, value)| Ok((key.to_owned(), Pattern::new(value)?)));
            Ok(Wanted { text: text.to_owned(), name: Pattern::new(text)?, point: point.transpose()? })
        };
        text.split(',')
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .map(wanted)
            .collect::<Result<_, _>>()
            .map(AnyOf)
    }
}

impl Wanted {
    fn is_at(&self, axes: &[(String, String)]) -> bool {
        self.point.as_ref().is_some_and(|(key, wanted)| {
            let is_meant =
                |of: &str| of == key || of.strip_suffix(key).is_some_and(|rest| rest.ends_with('.'));
            axes.iter().any(|(of, value)| is_meant(of) && wanted.matches(value.trim_matches('"')))
        })
    }

    fn matches(&self, strategy: &str, axes: &[(String, String)]) -> bool {
        self.name.matches(strategy) || self.is_at(axes)
    }
}

impl Filter {
    pub(super) fn is_everything(&self) -> bool {
        self.all_of.is_empty() && self.ids.is_empty()
    }

    pub(super) fn lets_through(&self, run: &PlannedRun) -> bool {
        self.matches(&run.strategy, &run.axes, &run.id)
    }

    fn matches(&self, strategy: &str, axes: &[(String, String)], id: &str) -> bool {
        let is_named = self.ids.is_empty() || self.ids.iter().any(|begin| id.starts_with(begin.as_str()));
        is_named && self.all_of.iter().all(|AnyOf(any)| any.iter().any(|one| one.matches(strategy, axes)))
    }

    /// The rows of the selected runs, and the baseline's rows at the same points, which ratios need.
    pub(super) fn rows(&self, mut rows: Vec<Row>, is_baseline: impl Fn(&Row) -> bool) -> Vec<Row> {
        let is_wanted = |row: &Row| self.matches(&row.strategy, &row.axes, &row.run_id);
        let points: BTreeSet<Vec<(String, String)>> =
            rows.iter().filter(|row| is_wanted(row)).map(|row| row.axes.clone()).collect();
        // Strategies may have their own swept keys.
        let is_beside =
            |row: &Row| points.iter().any(|point| row.axes.iter().all(|axis| point.contains(axis)));
        rows.retain(|row| is_wanted(row) || is_baseline(row) && is_beside(row));
        rows
    }

    /// Fails if a filter selects nothing.
    pub(super) fn check(&self, plans: &[Plan]) -> Result<(), Failure> {
        let runs = || plans.iter().flat_map(|plan| &plan.runs);
        let distinct = |names: &mut dyn Iterator<Item = String>| {
            let mut seen = Vec::new();
            names.for_each(|name| {
                if !seen.contains(&name) {
                    seen.push(name)
                }
            });
            seen.join(", ")
        };
        for wanted in self.all_of.iter().flat_map(|AnyOf(any)| any) {
            if !runs().any(|run| wanted.matches(&run.strategy, &run.axes)) {
                let strategies = distinct(&mut runs().map(|run| run.strategy.clone()));
                let points = distinct(
                    &mut runs().flat_map(|run| run.axes.iter().map(|(key, value)| format!("{key}={value}"))),
                );
                let points = if points.is_empty() { points } else { format!("; swept: {points}") };
                return Err(Failure::input(format!(
                    "no strategy matches --filter {}; there are: {strategies}{points}",
                    wanted.text
                )));
            }
        }
        if let Some(id) = self.ids.iter().find(|id| !runs().any(|run| run.id.starts_with(id.as_str()))) {
            return Err(Failure::input(format!(
                "no run's id begins with {id}; `runner sweep --dry-run` lists the ids"
            )));
        }
        if !self.is_everything() && !runs().any(|run| self.lets_through(run)) {
            return Err(Failure::input("no run matches every --filter and --run"));
        }
        Ok(())
    }
}
