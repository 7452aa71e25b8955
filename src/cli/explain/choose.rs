//! Selects the run to explain.

use crate::failure::Failure;
use plan::{Plan, PlannedRun};
use spec::nearest;

/// The most runs that the error for an ambiguous `--run` lists.
const LISTED: usize = 24;

/// A run with its experiment and its index there.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    pub(super) plan: &'a Plan,
    pub(super) run: &'a PlannedRun,
    pub(super) index: usize,
}

/// Finds the run by its strategy's name, its number in the order of `check --resolved`, or a prefix of its id. Without `which`,
/// there must be only one.
///
/// # Errors
/// No run matches, or several do.
pub(super) fn choose<'a>(plans: &'a [Plan], which: Option<&str>) -> Result<Chosen<'a>, Failure> {
    let all: Vec<Chosen<'a>> = plans
        .iter()
        .flat_map(|plan| plan.runs.iter().enumerate().map(move |(index, run)| Chosen { plan, run, index }))
        .collect();
    let Some(which) = which else {
        return match all.as_slice() {
            [only] => Ok(*only),
            [] => Err(Failure::input("there is no run to explain")),
            several => Err(Failure::input(format!(
                "there are {} runs; choose one with `--run`:\n{}",
                several.len(),
                listed(&all, |_| true)
            ))),
        };
    };
    let is_named = |chosen: &Chosen<'_>| chosen.run.strategy == which;
    let has_id = |chosen: &Chosen<'_>| which.len() >= 4 && chosen.run.id.starts_with(which);
    let by_number =
        || which.parse::<usize>().ok().and_then(|number| all.get(number.checked_sub(1)?)).copied();
    let mut found: Vec<Chosen<'_>> = all.iter().copied().filter(is_named).collect();
    if found.is_empty() {
        found.extend(by_number());
    }
    if found.is_empty() {
        // Strategies that resolve to the same run share its id.
        for chosen in all.iter().copied().filter(has_id) {
            if !found.iter().any(|known| known.run.id == chosen.run.id) {
                found.push(chosen);
            }
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(none(&all, which)),
        several => Err(Failure::input(format!(
            "`{which}` matches {} runs; give one's number:\n{}",
            several.len(),
            listed(&all, |run| several.iter().any(|one| std::ptr::eq(one.run, run)))
        ))),
    }
}

fn none(all: &[Chosen<'_>], which: &str) -> Failure {
    let names: Vec<&str> = all.iter().map(|chosen| chosen.run.strategy.as_str()).collect();
    let near = nearest(which, &names).map(|near| format!(" = help: did you mean `{near}`?\n"));
    let last = all.len();
    Failure::input(format!(
        "unknown run `{which}`; use a strategy's name, a number from 1 to {last}, or a prefix of an id\n{}{}",
        near.unwrap_or_default(),
        listed(all, |_| true)
    ))
}

/// A line per run: number, id, name and point.
fn listed(all: &[Chosen<'_>], is_meant: impl Fn(&PlannedRun) -> bool) -> String {
    let meant: Vec<(usize, &PlannedRun)> = all
        .iter()
        .enumerate()
        .map(|(index, one)| (index + 1, one.run))
        .filter(|(_, run)| is_meant(run))
        .collect();
    let line = |(number, run): &(usize, &PlannedRun)| {
        format!("{number:>4}  {:16}  {}", run.id, title(run)).trim_end().to_owned()
    };
    let mut lines: Vec<String> = meant.iter().take(LISTED).map(line).collect();
    if meant.len() > LISTED {
        lines.push(format!("      ... and {} more", meant.len() - LISTED));
    }
    lines.join("\n")
}

/// `lean, train.batch_size = 8`
pub(super) fn title(run: &PlannedRun) -> String {
    plan::title(&run.strategy, &run.axes)
}
