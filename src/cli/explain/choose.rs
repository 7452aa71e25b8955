//! Which run is meant.

use crate::failure::Failure;
use plan::{Plan, PlannedRun};
use spec::nearest;

/// So many runs are listed where it is not clear which is meant.
const LISTED: usize = 24;

/// A run with its experiment, and its place among the runs of that.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    pub(super) plan: &'a Plan,
    pub(super) run: &'a PlannedRun,
    pub(super) index: usize,
}

/// The run of a strategy's name, of a number in the order of `check --resolved`, or whose id begins so; the only one if nothing is
/// said.
///
/// # Errors
/// It is none of them, or several.
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
                "there are {} runs; say which by `--run`:\n{}",
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
        // Strategies that are one run have one id.
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
            "`{which}` is {} runs; say which by its number:\n{}",
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
        "there is no run `{which}`; its strategy tells a run, a number from 1 to {last}, or the beginning of its id\n{}{}",
        near.unwrap_or_default(),
        listed(all, |_| true)
    ))
}

/// A line for each: number, name, point and id.
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
