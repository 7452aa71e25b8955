//! Doubts about the speeds and their remedies, derived from the observed spread.

use super::Comparison;
use super::entry::{NOISY, TableEntry};
use super::numbers::{count, list, percent};
use super::sentence::names;
use base::statistics::{self, BY_FAR, Difference, FEWEST_ROUNDS, Ratio};

/// Fewer timed steps than this are too few.
const FEW_STEPS: usize = 10;
/// Timed steps of a shorter total are too few.
const SHORT_MS: f64 = 200.0;
/// The smallest relative difference worth detecting.
const OF_INTEREST: f64 = 0.02;
/// Beyond this number of repeats, a quieter machine is the better remedy.
const MOST_REPEATS: usize = 40;
/// More steps are advised if the spread within a process exceeds this share of [`NOISY`].
const STEP_SPREAD_SHARE: f64 = 0.5;

pub(super) fn sentences(comparison: &Comparison) -> Vec<String> {
    let measured: Vec<&TableEntry> = comparison.entries().filter(|entry| entry.speed.len() > 0).collect();
    let mut out: Vec<String> = Vec::new();
    if measured.len() > 1 {
        out.extend(not_interleaved(comparison));
        out.extend(split_rounds(comparison));
        out.extend(noisy(comparison).or_else(|| too_few(comparison, &measured)));
    }
    out.extend(disturbed(comparison));
    out.extend(few_steps(&measured));
    out
}

/// Entries that share no round with their baseline.
fn not_interleaved(comparison: &Comparison) -> Option<String> {
    let unpaired = pairs(comparison).filter(|(entry, base)| entry.speed.ratios(&base.speed).is_empty());
    let names: Vec<String> = unpaired
        .filter(|(entry, base)| are_ours(entry, base))
        .map(|(entry, _)| entry.label.clone())
        .collect();
    let was = if names.len() == 1 { "was" } else { "were" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {was} not interleaved with the baseline, but measured by another sweep: if one file has both, \
             `--fresh` measures them together.",
            list(&names)
        )
    })
}

/// Entries with enough repeats for an interval, but too few in the rounds of their baseline, as after an interruption.
fn split_rounds(comparison: &Comparison) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    let (mut fewest, mut needed) = (FEWEST_ROUNDS, 0);
    for (entry, base) in pairs(comparison).filter(|(entry, base)| is_split(entry, base)) {
        let rounds = entry.speed.ratios(&base.speed).len();
        names.push(entry.label.clone());
        fewest = fewest.min(rounds);
        needed = needed.max(last_repeat(entry, base) + FEWEST_ROUNDS - rounds);
    }
    let share = if names.len() == 1 { "shares" } else { "share" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {share} only {} with the baseline, and an interval needs {FEWEST_ROUNDS}: repeats that an interruption \
             or another sweep separates are not paired. `--repeats {needed}` adds the missing rounds.",
            list(&names),
            count(fewest, "round"),
        )
    })
}

/// Whether both can be measured here: rows of other programs have no run id.
fn are_ours(entry: &TableEntry, base: &TableEntry) -> bool {
    !entry.row.run_id.is_empty() && !base.row.run_id.is_empty()
}

/// The number of repeats so far; of rows of other programs, those that are compared.
fn last_repeat(entry: &TableEntry, base: &TableEntry) -> usize {
    let rounds = entry.speed.ratios(&base.speed).len();
    let last = entry.speed.last_repeat().max(base.speed.last_repeat());
    if are_ours(entry, base) { last.max(rounds) } else { rounds }
}

fn is_split(entry: &TableEntry, base: &TableEntry) -> bool {
    let rounds = entry.speed.ratios(&base.speed).len();
    let repeats = entry.speed.len().min(base.speed.len());
    are_ours(entry, base) && (1..FEWEST_ROUNDS).contains(&rounds) && repeats >= FEWEST_ROUNDS
}

/// Candidates paired with the baselines of their groups, if both have speeds.
fn pairs(comparison: &Comparison) -> impl Iterator<Item = (&TableEntry, &TableEntry)> + Clone {
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
    let existing = spread.clone().map(|(entry, _)| entry.speed.len()).max();
    let remedy = match sufficient_repeats(spread).filter(|repeats| Some(*repeats) > existing) {
        Some(repeats) => format!("close other programs, or sweep with `--repeats {repeats}`"),
        None => "close other programs, and sweep with `--fresh`".to_owned(),
    };
    Some(format!("{} {verb} noisy: {remedy}.", list(&noisy)))
}

/// The number of repeats that would establish the observed differences of all pairs, at most [`MOST_REPEATS`].
fn sufficient_repeats<'a>(pairs: impl Iterator<Item = (&'a TableEntry, &'a TableEntry)>) -> Option<usize> {
    let needed = |(entry, base): (&TableEntry, &TableEntry)| {
        let rounds = entry.speed.ratios(&base.speed);
        let unpaired = last_repeat(entry, base) - rounds.len();
        Some(statistics::rounds_to_tell(&rounds, OF_INTEREST, MOST_REPEATS)? + unpaired)
    };
    pairs.map(needed).try_fold(0, |most, needed| Some(most.max(needed?))).filter(|repeats| *repeats > 0)
}

fn too_few(comparison: &Comparison, measured: &[&TableEntry]) -> Option<String> {
    let unknown = |(entry, base): &(&TableEntry, &TableEntry)| {
        let no_interval = entry.difference(base) == Difference::Unknown && !is_split(entry, base);
        no_interval && !entry.speed.ratios(&base.speed).is_empty()
    };
    let unknown: Vec<(&TableEntry, &TableEntry)> = pairs(comparison).filter(unknown).collect();
    let rounds = unknown.iter().map(|(entry, base)| entry.speed.ratios(&base.speed).len());
    let (fewest, most) = (rounds.clone().min()?, rounds.max()?);
    let repeats = match (fewest, most) {
        (1, 1) => "One repeat".to_owned(),
        _ if fewest == most => format!("{most} repeats"),
        _ => format!("{fewest} to {most} repeats"),
    };
    let ranks = format!("{repeats} cannot rank speeds within a factor of {BY_FAR}: ");
    let remedy = match sufficient_repeats(unknown.into_iter()) {
        Some(repeats) => format!("judging by the spread, `--repeats {repeats}` would."),
        // One repeat has no spread.
        None if fewest == 1 => format!("use at least `--repeats {FEWEST_ROUNDS}`."),
        None => {
            format!(
                "judging by the spread, `--repeats {MOST_REPEATS}` would not either, but a quieter machine may."
            )
        }
    };
    Some(format!("{ranks}{remedy}{}", more_steps(measured).unwrap_or_default()))
}

/// Advises more steps if they are short in total, or if their spread within a process is a large part of the noise.
fn more_steps(measured: &[&TableEntry]) -> Option<String> {
    let timed_ms = |entry: &&TableEntry| Some(entry.row.step_ms_median? * entry.row.steps? as f64);
    let shortest = measured.iter().filter_map(timed_ms).min_by(f64::total_cmp)?;
    let spread = |entry: &&TableEntry| Some(entry.row.step_ms_ci95? / entry.row.step_ms_median?);
    let widest = measured.iter().filter_map(spread).max_by(f64::total_cmp).unwrap_or(0.0);
    let disturbed = measured.iter().any(|entry| entry.is_disturbed());
    if disturbed || shortest >= SHORT_MS && widest <= STEP_SPREAD_SHARE * NOISY {
        return None;
    }
    let steps = measured.iter().filter_map(|entry| entry.row.steps).min()?;
    let longer = (SHORT_MS / shortest.max(1e-3)).max((widest / (STEP_SPREAD_SHARE * NOISY)).powi(2));
    let enough = (steps as f64 * longer).ceil().min(1e6) as usize;
    Some(format!(" More steps would also help: `--set measure.steps={}`.", enough.next_multiple_of(10)))
}

/// Speeds disturbed by other programs, clock changes or outliers.
fn disturbed(comparison: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    let busy = names(comparison, |entry| entry.crowded().map(|share| format!("{}%", percent(share))));
    if !busy.is_empty() {
        out.push(format!(
            "Other programs used the processors for part of the time of {}: close them, and sweep with `--fresh`.",
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
        out.push(format!("Some repeats are outliers: {}. Medians tolerate a few.", list(&outlying)));
    }
    out
}

fn few_steps(measured: &[&TableEntry]) -> Option<String> {
    let steps =
        measured.iter().filter_map(|entry| entry.row.steps).min().filter(|steps| *steps < FEW_STEPS)?;
    let were = if steps == 1 { "was" } else { "were" };
    Some(format!("Only {} {were} timed: raise `[measure] steps`.", count(steps, "step")))
}
