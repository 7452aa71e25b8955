//! What is doubtful about the speeds, and what would settle it, by the spread that was seen.

use super::Comparison;
use super::entry::{Entry, NOISY};
use super::numbers::{count, list, percent};
use super::verdict::names;
use base::statistics::{self, BY_FAR, Difference, FEWEST_ROUNDS, Ratio};

/// Fewer timed steps than this say little, and so do steps that together take no longer.
const FEW_STEPS: usize = 10;
const SHORT_MS: f64 = 200.0;
/// A difference that people may want to know of.
const OF_INTEREST: f64 = 0.02;
/// More repeats than this settle nothing that a quieter machine would not settle sooner.
const MOST_REPEATS: usize = 40;
/// Where the steps of a process make up more of the spread than this, more of them are the remedy.
const OF_STEPS: f64 = 0.5;

pub(super) fn sentences(comparison: &Comparison) -> Vec<String> {
    let measured: Vec<&Entry> = comparison.entries().filter(|entry| entry.speed.len() > 0).collect();
    let mut out: Vec<String> = Vec::new();
    if measured.len() > 1 {
        out.extend(apart(comparison));
        out.extend(noisy(comparison).or_else(|| too_few(comparison, &measured)));
    }
    out.extend(disturbed(comparison));
    out.extend(few_steps(&measured));
    out
}

/// What was not measured in turns with its baseline.
fn apart(comparison: &Comparison) -> Option<String> {
    let apart = pairs(comparison).filter(|(entry, base)| entry.speed.ratios(&base.speed).is_empty());
    // What another program measured is not measured again.
    let ours = apart.filter(|(entry, base)| !entry.row.run_id.is_empty() && !base.row.run_id.is_empty());
    let names: Vec<String> = ours.map(|(entry, _)| entry.label.clone()).collect();
    let was = if names.len() == 1 { "was" } else { "were" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {was} not measured in turns with what the speed is compared to, but by another sweep: `--fresh` measures \
             both together.",
            list(&names)
        )
    })
}

/// Entries with the baselines of their groups, where both have speeds.
fn pairs(comparison: &Comparison) -> impl Iterator<Item = (&Entry, &Entry)> + Clone {
    comparison.groups.iter().flat_map(|group| {
        let base = group.base().filter(|base| base.speed.len() > 0);
        base.into_iter().flat_map(move |base| {
            let others = group.entries.iter().filter(|entry| !entry.relative.is_baseline);
            others
                .filter(|entry| entry.is_candidate() && entry.speed.len() > 0)
                .map(move |entry| (entry, base))
        })
    })
}

fn noisy(comparison: &Comparison) -> Option<String> {
    let noisy = names(comparison, |entry| {
        let half = entry.relative.speed.as_ref().and_then(Ratio::half_width)?;
        entry.is_noisy().then(|| format!("+-{}%", percent(half)))
    });
    if noisy.is_empty() {
        return None;
    }
    let verb = if noisy.len() == 1 { "is" } else { "are" };
    let spread = pairs(comparison).filter(|(entry, _)| entry.is_noisy());
    let there = spread.clone().map(|(entry, _)| entry.speed.len()).max();
    let remedy = match enough(spread).filter(|repeats| Some(*repeats) > there) {
        Some(repeats) => format!("close other programs, or sweep with `--repeats {repeats}`"),
        None => "close other programs, and sweep with `--fresh`".to_owned(),
    };
    Some(format!("{} {verb} noisy: {remedy}.", list(&noisy)))
}

/// How many repeats would tell the differences that were seen, of all these pairs.
fn enough<'a>(pairs: impl Iterator<Item = (&'a Entry, &'a Entry)>) -> Option<usize> {
    let needed = |(entry, base): (&Entry, &Entry)| {
        statistics::rounds_to_tell(&entry.speed.ratios(&base.speed), OF_INTEREST, MOST_REPEATS)
    };
    pairs.map(needed).try_fold(0, |most, needed| Some(most.max(needed?))).filter(|repeats| *repeats > 0)
}

fn too_few(comparison: &Comparison, measured: &[&Entry]) -> Option<String> {
    let unknown = |(entry, base): &(&Entry, &Entry)| {
        entry.difference(base) == Difference::Unknown && !entry.speed.ratios(&base.speed).is_empty()
    };
    let unknown: Vec<(&Entry, &Entry)> = pairs(comparison).filter(unknown).collect();
    let rounds = unknown.iter().map(|(entry, base)| entry.speed.ratios(&base.speed).len()).max()?;
    let times = BY_FAR;
    let ranks = if rounds == 1 {
        format!("Each ran once, which ranks no speeds that are within {times} times of each other: ")
    } else {
        format!("{rounds} repeats rank no speeds that are within {times} times of each other: ")
    };
    let remedy = match enough(unknown.into_iter()) {
        Some(repeats) => format!("by their spread `--repeats {repeats}` would."),
        None if rounds == 1 => format!("`--repeats {FEWEST_ROUNDS}` is the least that does."),
        None => {
            format!("by their spread `--repeats {MOST_REPEATS}` would not either, but a quieter machine may.")
        }
    };
    Some(format!("{ranks}{remedy}{}", more_steps(measured).unwrap_or_default()))
}

/// The spread of the steps within one process is much of what is seen between processes.
fn more_steps(measured: &[&Entry]) -> Option<String> {
    let timed_ms = |entry: &&Entry| Some(entry.row.step_ms_median? * entry.row.steps? as f64);
    let shortest = measured.iter().filter_map(timed_ms).min_by(f64::total_cmp)?;
    let spread = |entry: &&Entry| Some(entry.row.step_ms_ci95? / entry.row.step_ms_median?);
    let widest = measured.iter().filter_map(spread).max_by(f64::total_cmp).unwrap_or(0.0);
    let disturbed = measured.iter().any(|entry| entry.is_disturbed());
    if disturbed || shortest >= SHORT_MS && widest <= OF_STEPS * NOISY {
        return None;
    }
    let steps = measured.iter().filter_map(|entry| entry.row.steps).min()?;
    let longer = (SHORT_MS / shortest.max(1e-3)).max((widest / (OF_STEPS * NOISY)).powi(2));
    let enough = (steps as f64 * longer).ceil().min(1e6) as usize;
    Some(format!(" More steps would help, too: `--set measure.steps={}`.", enough.next_multiple_of(10)))
}

/// Speeds that something else had a part in.
fn disturbed(comparison: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    let busy = names(comparison, |entry| entry.crowded().map(|share| format!("{}%", percent(share))));
    if !busy.is_empty() {
        out.push(format!(
            "Other programs had the processors for so much of the time of {}: close them, and sweep with `--fresh`.",
            list(&busy)
        ));
    }
    let clock =
        names(comparison, |entry| entry.clock_changed().map(|change| format!("{}%", percent(change))));
    if !clock.is_empty() {
        out.push(format!("The processor's clock changed while {} ran.", list(&clock)));
    }
    let outlying = names(comparison, |entry| {
        let outliers = entry.relative.outliers;
        (outliers > 0).then(|| format!("{outliers} of {}", entry.repeats))
    });
    if !outlying.is_empty() {
        out.push(format!("Some repeats lie far from the others: {}. Medians bear a few.", list(&outlying)));
    }
    out
}

fn few_steps(measured: &[&Entry]) -> Option<String> {
    let steps =
        measured.iter().filter_map(|entry| entry.row.steps).min().filter(|steps| *steps < FEW_STEPS)?;
    let were = if steps == 1 { "was" } else { "were" };
    Some(format!("Only {} {were} timed: raise `[measure] steps`.", count(steps, "step")))
}
