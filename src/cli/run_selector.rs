//! `--run`: selects runs by the name of their strategy, by number, by a range of numbers or by the beginning of their id.

use super::failure::Failure;
use plan::{Plan, PlannedRun, Point};

/// The most runs that an error lists.
const LISTED: usize = 24;
/// The number of similar runs that the error for an unknown run lists.
const NEAREST: usize = 3;
/// Shorter texts are not ids.
const LEAST_ID: usize = 4;
/// Longer texts are not compared with names: that takes time and memory proportional to the product of the lengths.
const LONGEST: usize = 100;

/// A run with its number, its experiment and its index there.
#[derive(Clone, Copy)]
pub(super) struct NumberedRun<'a> {
    /// From 1, over the runs of all experiments.
    number: usize,
    pub(super) plan: &'a Plan,
    pub(super) run: &'a PlannedRun,
    pub(super) index: usize,
}

/// All runs in the order of their numbers.
pub(super) fn numbered(plans: &[Plan]) -> Vec<NumberedRun<'_>> {
    let runs = plans.iter().flat_map(|plan| plan.runs.iter().enumerate().map(move |at| (plan, at)));
    runs.zip(1..).map(|((plan, (index, run)), number)| NumberedRun { number, plan, run, index }).collect()
}

/// The runs of the strategy `text`; if there are none, the run with this number, or those with the numbers of a range such as
/// `3-8`; otherwise the runs whose ids begin so.
///
/// # Errors
/// No run matches.
pub(super) fn select<'a>(all: &[NumberedRun<'a>], text: &str) -> Result<Vec<NumberedRun<'a>>, Failure> {
    let number = |text: &str| text.parse::<usize>().ok();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = number(first).zip(number(last)).filter(|(_, last)| *last <= all.len());
    let matches: [&dyn Fn(&NumberedRun<'_>) -> bool; 3] = [
        &|one| one.run.strategy == text,
        &|one| range.is_some_and(|(first, last)| (first..=last).contains(&one.number)),
        &|one| text.len() >= LEAST_ID && one.run.id.starts_with(text),
    ];
    let selections = matches.map(|is_meant| all.iter().copied().filter(is_meant).collect::<Vec<_>>());
    selections.into_iter().find(|found| !found.is_empty()).ok_or_else(|| unknown(all, text))
}

/// Whether `--run` may select a run at this point by the name of its strategy; without `--run`, every point is named.
pub(super) fn is_named(which: Option<&str>, point: &Point) -> bool {
    which.is_none_or(|which| point.strategy == which)
}

/// Finds the run that `--run` selects. Without it, there must be only one.
///
/// # Errors
/// No run matches, or several do.
pub(super) fn choose<'a>(plans: &'a [Plan], which: Option<&str>) -> Result<NumberedRun<'a>, Failure> {
    let all = numbered(plans);
    let Some(which) = which else {
        return match all.as_slice() {
            [only] => Ok(*only),
            [] => Err(Failure::input("there is no run")),
            several => Err(Failure::input(format!(
                "there are {} runs; choose one with `--run`:\n{}",
                several.len(),
                listed(several)
            ))),
        };
    };
    let mut found = select(&all, which)?;
    // Strategies that resolve to the same run share its id. Without its data a run has none.
    found.dedup_by(|one, before| !one.run.id.is_empty() && one.run.id == before.run.id);
    match found.as_slice() {
        [one] => Ok(*one),
        several => Err(Failure::input(format!(
            "`{which}` matches {} runs; give one's number:\n{}",
            several.len(),
            listed(several)
        ))),
    }
}

fn unknown(all: &[NumberedRun<'_>], text: &str) -> Failure {
    let distance = |known: &str| match text.len().max(known.len()) {
        0..=LONGEST => strsim::damerau_levenshtein(text, known),
        _ => usize::MAX,
    };
    let mut nearest = all.to_vec();
    nearest.sort_by_cached_key(|one| {
        let begin = one.run.id.get(..text.len()).unwrap_or(&one.run.id);
        distance(&one.run.strategy).min(distance(begin))
    });
    nearest.truncate(NEAREST);
    Failure::input(format!(
        "unknown run `{text}`; use a strategy's name, a number from 1 to {}, or at least {LEAST_ID} characters of an id; \
         the nearest:\n{}",
        all.len(),
        listed(&nearest)
    ))
}

/// A line per run: number, id, name and point.
pub(super) fn listed(runs: &[NumberedRun<'_>]) -> String {
    let line = |NumberedRun { number, run, .. }: &NumberedRun<'_>| {
        format!("{number:>4}  {:16}  {}", run.id, title(run)).trim_end().to_owned()
    };
    let mut lines: Vec<String> = runs.iter().take(LISTED).map(line).collect();
    if runs.len() > LISTED {
        lines.push(format!("      ... and {} more", runs.len() - LISTED));
    }
    lines.join("\n")
}

/// `lean, train.batch_size = 8`
pub(super) fn title(run: &PlannedRun) -> String {
    plan::title(&run.strategy, &run.axes)
}
