//! `--filter` and `--run`: select runs.

use std::collections::BTreeSet;
use std::str::FromStr;

use glob::Pattern;

use super::failure::Failure;
use super::run_selector::{numbered, select};
use plan::{Plan, PlannedRun, Point};
use results::Row;

/// A selection of runs.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Filter {
    /// Only these strategies, or only these values of a swept key: 'bf16*,plain' or train.batch_size=8. A run must match every
    /// --filter
    #[arg(long = "filter", value_name = "GLOB,KEY=VALUE")]
    all_of: Vec<AnyOf>,
    /// Only this run: a strategy's name, a number of `sweep --dry-run`, a range of them such as 3-8, or the beginning of an id
    #[arg(long = "run", value_name = "NAME|N|ID")]
    runs: Vec<String>,
    /// The runs that `runs` selects.
    #[arg(skip)]
    selected: Vec<SelectedRun>,
}

/// What identifies a selected run and its rows.
#[derive(Clone, Debug)]
struct SelectedRun {
    /// Empty if the run's data is absent.
    id: String,
    strategy: String,
    axes: Vec<(String, String)>,
}

impl SelectedRun {
    fn of(run: &PlannedRun) -> SelectedRun {
        SelectedRun { id: run.id.clone(), strategy: run.strategy.clone(), axes: run.axes.clone() }
    }
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
    /// The options, for the command line of another process.
    pub(super) fn options(&self) -> Vec<String> {
        let filters = self.all_of.iter().map(|AnyOf(any)| {
            let any: Vec<&str> = any.iter().map(|one| one.text.as_str()).collect();
            ["--filter".to_owned(), any.join(",")]
        });
        filters.chain(self.runs.iter().map(|run| ["--run".to_owned(), run.clone()])).flatten().collect()
    }

    pub(super) fn is_everything(&self) -> bool {
        self.all_of.is_empty() && self.runs.is_empty()
    }

    /// Whether a run at this point is selected by name. One that is selected by its number or id may be any.
    pub(super) fn names(&self, point: &Point) -> bool {
        let is_named = self.runs.is_empty() || self.runs.contains(&point.strategy);
        is_named && self.fits_patterns(&point.strategy, &point.axes)
    }

    /// Whether a run matches every `--filter`.
    fn fits_patterns(&self, strategy: &str, axes: &[(String, String)]) -> bool {
        self.all_of.iter().all(|AnyOf(any)| any.iter().any(|one| one.matches(strategy, axes)))
    }

    pub(super) fn lets_through(&self, run: &PlannedRun) -> bool {
        self.matches(&run.strategy, &run.axes, &run.id)
    }

    fn matches(&self, strategy: &str, axes: &[(String, String)], id: &str) -> bool {
        let is_this = |run: &SelectedRun| {
            run.id == id && run.strategy == strategy && (!id.is_empty() || run.axes == axes)
        };
        let is_selected = self.runs.is_empty() || self.selected.iter().any(is_this);
        is_selected && self.fits_patterns(strategy, axes)
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

    /// Finds the runs that `--run` selects.
    ///
    /// # Errors
    /// A filter selects nothing.
    pub(super) fn resolve(&mut self, plans: &[Plan]) -> Result<(), Failure> {
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
        let numbered = numbered(plans);
        for text in &self.runs {
            self.selected.extend(select(&numbered, text)?.iter().map(|one| SelectedRun::of(one.run)));
        }
        if !self.is_everything() && !runs().any(|run| self.lets_through(run)) {
            return Err(Failure::input("no run matches every --filter and --run"));
        }
        Ok(())
    }
}
