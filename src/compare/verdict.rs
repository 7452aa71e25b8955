//! The verdict in sentences. It makes no claim about speed that noise could explain.

use std::collections::{BTreeSet, HashMap};

use super::columns;
use super::entry::{LossSource, TableEntry, WAITS};
use super::group::TableGroup;
use super::numbers::{change, list, percent, rate, ratio, size};
use super::sentence::{names, subject};
use super::text::one_line;
use super::{Basis, Comparison, advice, doubts, fewest_ranks};
use base::statistics::{Difference, Ratio};
use memory::FreeMemory;
use results::Status;

/// Warn about losses that exceed the baseline's by more than this share.
const WORSE_LOSS: f64 = 0.01;
/// Maximum number of sentences of one kind. The rest is counted, unless it is a single sentence.
const MOST: usize = 4;

pub(super) fn sentences(comparison: &Comparison) -> Vec<String> {
    let groups = comparison.groups.iter();
    let mut out = match comparison.basis {
        Basis::Measured => first_few(groups.filter_map(|group| recommendation(comparison, group))),
        Basis::Predicted => first_few(groups.filter_map(advice::sentence)),
    };
    out.extend((comparison.basis == Basis::Predicted).then(|| fewest_ranks::sentence(comparison)).flatten());
    out.extend(first_few(comparison.groups.iter().filter_map(|group| missing_baseline(comparison, group))));
    out.extend(to_drop(comparison));
    out.extend(first_few(each_entry(comparison, |entry, group| {
        out_of_memory(comparison.basis, entry, group)
    })));
    out.extend(first_few(each_entry(comparison, unfinished)));
    if comparison.basis == Basis::Measured {
        out.extend(lost_updates(comparison));
        out.extend(higher_loss(comparison));
        out.extend(loss_of_one_step(comparison));
        out.extend(data_wait(comparison));
        out.extend(disagreements(comparison));
        out.extend(doubts::sentences(comparison));
    }
    out.extend(mixed_versions(comparison));
    out.extend(mixed_instruction_sets(comparison));
    out.iter().map(|sentence| one_line(sentence)).collect()
}

/// The first sentences of one kind, and the number of the others.
fn first_few(sentences: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = sentences.collect();
    if all.len() > MOST + 1 {
        let rest = all.len() - MOST;
        all.truncate(MOST);
        all.push(format!("... and {rest} more."));
    }
    all
}

fn each_entry(
    comparison: &Comparison,
    sentence: impl Fn(&TableEntry, &TableGroup) -> Option<String>,
) -> impl Iterator<Item = String> {
    comparison
        .groups
        .iter()
        .flat_map(|group| group.entries.iter().map(move |entry| (entry, group)))
        .filter_map(move |(entry, group)| sentence(entry, group))
}

/// The fastest strategy, the one with the least memory, and the best trade-off.
fn recommendation(comparison: &Comparison, group: &TableGroup) -> Option<String> {
    let by_axis = comparison.by.is_some();
    let usable: Vec<&TableEntry> = group
        .entries
        .iter()
        .filter(|entry| entry.is_candidate() && entry.speed.len() > 0)
        .filter(|entry| by_axis || !entry.relative.is_duplicate)
        // An entry with a key without effect duplicates another entry.
        .filter(|entry| by_axis || entry.relative.pareto || entry.row.no_effect.is_empty())
        .collect();
    let top = usable.iter().copied().max_by(|a, b| median(a).total_cmp(&median(b)));
    let Some(top) = top else { return Some(subject(group, "no strategy has a speed to compare.")) };
    let slower = |entry: &&TableEntry| entry.difference(top) == Difference::Less && !entry.is_level_with(top);
    let tied: Vec<&TableEntry> = usable.iter().copied().filter(|entry| !slower(entry)).collect();
    let unknown = tied.iter().any(|entry| !same(top, entry) && entry.difference(top) == Difference::Unknown);
    // Of the possibly equally fast entries, those with the least memory.
    let least = tied.iter().map(|entry| entry.needs()).min()?;
    let frugal: Vec<&TableEntry> = tied.iter().copied().filter(|entry| entry.needs() == least).collect();
    let fastest = frugal.iter().copied().find(|entry| entry.relative.is_baseline).unwrap_or(frugal[0]);
    let smallest = usable.iter().copied().min_by_key(|entry| entry.needs())?;

    let (figures, peaks) = (figures(comparison, group, fastest)?, fastest.peaks()?);
    let need = if frugal.len() == 1 { "needs" } else { "need" };
    let (tied_names, frugal_names) = (names_of(&tied), names_of(&frugal));
    let with_speed = group.entries.iter().filter(|entry| entry.is_usable() && entry.speed.len() > 0).count();
    let mut text = match tied.len() {
        _ if usable.len() == 1 && with_speed == 1 => {
            format!("only {} has a measured speed ({figures}).", fastest.label)
        }
        _ if usable.len() == 1 => format!("no strategy differs from {} ({figures}).", fastest.label),
        1 => format!("{} is the fastest ({figures}).", fastest.label),
        _ if unknown => format!(
            "the speeds of {tied_names} cannot be ranked; of these {frugal_names} {need} the least memory ({peaks})."
        ),
        n if n == frugal.len() => {
            format!("{tied_names} are equally fast and need the same memory ({figures}).")
        }
        n if n == usable.len() => {
            format!("no measurable difference in speed; {frugal_names} {need} the least memory ({figures}).")
        }
        _ => format!(
            "no measurable difference in speed between the fastest, {tied_names}; of these {frugal_names} {need} \
             the least memory ({figures})."
        ),
    };
    if smallest.needs() < fastest.needs() {
        text.push_str(&format!(" {}", least_memory(group, smallest, fastest)?));
        text.push_str(&best_trade_off(&usable, fastest, smallest).unwrap_or_default());
    } else if tied.len() < usable.len() {
        text.push_str(" No strategy needs less memory.");
    }
    Some(subject(group, &text))
}

fn same(one: &TableEntry, other: &TableEntry) -> bool {
    std::ptr::eq(one, other)
}

fn median(entry: &TableEntry) -> f64 {
    entry.speed.median().unwrap_or(0.0)
}

fn names_of(entries: &[&TableEntry]) -> String {
    list(&entries.iter().map(|entry| entry.label.clone()).collect::<Vec<_>>())
}

/// `412k tok/s, 7.92 times fp32, in 7.7 GiB`
fn figures(comparison: &Comparison, group: &TableGroup, entry: &TableEntry) -> Option<String> {
    let relative = &entry.relative;
    let times = match (relative.speed, group.base()) {
        (Some(speed), Some(base)) if differs(speed) && !relative.is_baseline => {
            format!(", {} times {},", ratio(speed.median), base.label)
        }
        _ => String::new(),
    };
    Some(format!("{} {}{times} in {}", rate(median(entry)), comparison.speed_unit, entry.peaks()?))
}

/// Whether the difference is established.
fn differs(speed: Ratio) -> bool {
    matches!(speed.difference, Difference::Less | Difference::More)
}

fn least_memory(group: &TableGroup, smallest: &TableEntry, fastest: &TableEntry) -> Option<String> {
    let of_base = smallest.share_of(group.base());
    let speed = smallest.speed_over(fastest).filter(|speed| differs(*speed));
    let speed = match (speed, group.base()) {
        // In the table's words: beside its `=`, a ratio to another row would read as a contradiction.
        (Some(_), Some(base)) if smallest.same_speed() => {
            format!(", as fast as {} within the noise", base.label)
        }
        (Some(speed), _) => format!(" at {} of that speed", ratio(speed.median)),
        (None, _) => String::new(),
    };
    Some(format!("{} needs the least memory ({}{of_base}){speed}.", smallest.label, smallest.peaks()?))
}

/// The entry of the Pareto front with the highest speed per byte, unless it is the fastest or the smallest.
fn best_trade_off(usable: &[&TableEntry], fastest: &TableEntry, smallest: &TableEntry) -> Option<String> {
    let speed_per_byte =
        |entry: &TableEntry| Some(entry.speed.median()? / entry.memory.filter(|bytes| *bytes > 0)? as f64);
    let best = usable
        .iter()
        .copied()
        .filter(|entry| entry.relative.pareto)
        .filter_map(|entry| Some((speed_per_byte(entry)?, entry)))
        .max_by(|a, b| a.0.total_cmp(&b.0))?
        .1;
    if best.label == fastest.label || best.label == smallest.label || best.memory >= fastest.memory {
        return None;
    }
    let less = 1.0 - best.memory? as f64 / fastest.memory? as f64;
    let speed = best.speed_over(fastest)?;
    let cost = match speed.difference {
        Difference::Unknown => return None,
        Difference::None => "no measurable loss of speed".to_owned(),
        _ => format!("{}% of its speed", percent((1.0 - speed.median).max(0.0))),
    };
    Some(format!(
        " In between, {} saves {}% of the memory of {} for {cost}.",
        best.label,
        percent(less.max(0.0)),
        fastest.label,
    ))
}

fn missing_baseline(comparison: &Comparison, group: &TableGroup) -> Option<String> {
    group
        .baseline
        .is_none()
        .then(|| format!("The baseline {} is missing{}.", comparison.baseline, group.at_heading()))
}

/// Keys without effect, and strategies that save neither memory nor time at any axis point.
fn to_drop(comparison: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    let mut useless: Vec<String> = Vec::new();
    for (name, entries) in by_strategy(comparison) {
        let without_effect = entries.iter().find(|entry| !entry.row.no_effect.is_empty());
        if let Some(without_effect) = without_effect {
            let mut others = entries.iter().filter(|other| other.status != Status::Skipped);
            if others.all(|other| other.row.no_effect == without_effect.row.no_effect) {
                let keys = without_effect.no_effect();
                let has = if keys.len() == 1 { "it has" } else { "they have" };
                out.push(format!("Drop {} from {name}: {has} no effect here.", list(&keys)));
            }
        } else if comparison.by.is_none()
            && comparison.basis == Basis::Measured
            && entries.iter().all(|entry| saves_nothing(entry))
        {
            useless.push(name.to_string());
        }
    }
    if !useless.is_empty() {
        let (verb, them) = if useless.len() == 1 { ("saves", "it") } else { ("save", "them") };
        out.push(format!(
            "{} {verb} neither memory nor time compared with {}: drop {them}.",
            list(&useless),
            comparison.baseline
        ));
    }
    out
}

/// The entries by strategy, in the order of the table.
fn by_strategy(comparison: &Comparison) -> Vec<(&str, Vec<&TableEntry>)> {
    let mut strategies: Vec<(&str, Vec<&TableEntry>)> = Vec::new();
    let mut indices: HashMap<&str, usize> = HashMap::new();
    for entry in comparison.entries() {
        let name = entry.row.strategy.as_str();
        let index = *indices.entry(name).or_insert(strategies.len());
        match strategies.get_mut(index) {
            Some((_, entries)) => entries.push(entry),
            None => strategies.push((name, vec![entry])),
        }
    }
    strategies
}

fn saves_nothing(entry: &TableEntry) -> bool {
    let relative = &entry.relative;
    !relative.is_baseline
        && entry.is_candidate()
        && relative.memory.is_some_and(|memory| memory >= 1.0)
        && relative.reserved.is_none_or(|reserved| reserved >= 1.0)
        && relative.speed.is_some_and(|speed| matches!(speed.difference, Difference::Less | Difference::None))
        && !relative.less_to_start
}

/// `fp32 ran out of memory at batch 16: 2.1 GiB short for logits in forward of step 1.`; if steps leak memory,
/// `ran out of memory at batch 16 after 40 steps: ...`.
fn out_of_memory(basis: Basis, entry: &TableEntry, group: &TableGroup) -> Option<String> {
    let row = &entry.row;
    if entry.status != Status::Oom {
        return None;
    }
    let verb = if basis == Basis::Measured { "ran out of memory" } else { "does not fit" };
    let short = columns::short(row).map(|short| format!(": {short}")).unwrap_or_default();
    let what = row.oom_value.as_ref().or(row.oom_operation.as_ref());
    let what = what.map(|what| format!(" for {what}")).unwrap_or_default();
    let phase = row.oom_phase.as_ref().map(|phase| format!(" in {phase}")).unwrap_or_default();
    let after =
        row.steps_until_oom.map(|steps| format!(" after {}", columns::steps(steps))).unwrap_or_default();
    let step = row.oom_step.filter(|_| row.steps_until_oom.is_none());
    // A step after the first fails if an earlier one created what stays allocated.
    let first_peak = row.predicted_first_step_peak_bytes.filter(|_| step > Some(1));
    let first_peak = first_peak.map(|peak| format!("; step 1 needs {} live", size(peak))).unwrap_or_default();
    let step = step.map(|step| format!(" of step {step}")).unwrap_or_default();
    let bytes = row.oom_in_pieces_bytes.unwrap_or(0);
    let pieces = FreeMemory { bytes, largest: row.oom_largest_piece_bytes.unwrap_or(0) };
    let pieces = execute::in_pieces(pieces).map(|pieces| format!("; {pieces}")).unwrap_or_default();
    Some(format!(
        "{} {verb}{}{after}{short}{what}{phase}{step}{first_peak}{pieces}.",
        entry.label,
        group.at_heading()
    ))
}

/// The full reason for missing measurements, which the table may shorten.
fn unfinished(entry: &TableEntry, group: &TableGroup) -> Option<String> {
    let what = match entry.status {
        Status::Skipped if entry.is_not_predicted() => "is not predicted",
        Status::Skipped => "was skipped",
        Status::Timeout => "timed out",
        Status::Failed => "failed",
        Status::Interrupted => "was interrupted",
        Status::Diverged => "diverged",
        Status::Ok | Status::Oom => return None,
    };
    let message = entry.row.message.trim().trim_end_matches('.');
    let why = if message.is_empty() { String::new() } else { format!(": {message}") };
    let next = if entry.status.is_final() { "" } else { " The next sweep retries it." };
    Some(format!("{} {what}{}{why}.{next}", entry.label, group.at_heading()))
}

/// 16-bit parameters whose updates are rounded away.
fn lost_updates(comparison: &Comparison) -> Option<String> {
    let lost = |entry: &TableEntry| {
        entry.lost_updates().map(|share| format!("{}% of weights unchanged", percent(share)))
    };
    let names = names(comparison, lost);
    let learn = if names.len() == 1 { "learns" } else { "learn" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {learn} next to nothing: updates smaller than half a ULP are rounded away, and small gradients in \
             fp16 as well. Use rounding = \"stochastic\" or master_weights = true.",
            list(&names)
        )
    })
}

fn higher_loss(comparison: &Comparison) -> Option<String> {
    let worse = |entry: &TableEntry| {
        let is_of_evaluation = entry.loss.as_ref()?.source == LossSource::Evaluation;
        entry
            .loss_change()
            .filter(|loss| is_of_evaluation && *loss > WORSE_LOSS && !entry.same_loss())
            .map(change)
    };
    let names = names(comparison, worse);
    (comparison.by.is_none() && !names.is_empty())
        .then(|| format!("Check convergence: the loss of {} is above the baseline's.", list(&names)))
}

/// Losses of a single training step, which differ by chance in either direction.
fn loss_of_one_step(comparison: &Comparison) -> Option<String> {
    let other = |entry: &TableEntry| {
        let is_of_training = entry.loss.as_ref()?.source == LossSource::Training;
        let differs = |loss: &f64| is_of_training && loss.abs() > WORSE_LOSS && !entry.same_loss();
        entry.loss_change().filter(differs).map(change)
    };
    let names = names(comparison, other);
    (comparison.by.is_none() && !names.is_empty()).then(|| {
        format!(
            "The loss of {} differs from the baseline's in the last training step, one batch: that may be chance. To \
             compare losses, add `[evaluation]` and several repeats with `seeds = \"vary\"` in `[measure]`.",
            list(&names)
        )
    })
}

fn data_wait(comparison: &Comparison) -> Option<String> {
    let share = |entry: &TableEntry| entry.wait.filter(|share| *share > WAITS);
    let names =
        names(comparison, |entry| share(entry).map(|share| format!("{}% of the step", percent(share))));
    let verb = if names.len() == 1 { "waits" } else { "wait" };
    (!names.is_empty()).then(|| format!("{} {verb} for data.", list(&names)))
}

fn disagreements(comparison: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    let missed = names(comparison, |entry| {
        let (predicted, peak) = (entry.row.predicted_peak_bytes?, entry.row.peak_bytes?);
        entry.prediction_missed().then(|| format!("{} predicted, {} measured", size(predicted), size(peak)))
    });
    if !missed.is_empty() {
        out.push(format!("The predicted peak of {} is wrong: please report it.", list(&missed)));
    }
    let uncounted = names(comparison, |entry| {
        let off = entry.uncounted()?;
        let bytes = size(u64::try_from(off.unsigned_abs()).unwrap_or(u64::MAX));
        Some(format!("{bytes} {}", if off > 0 { "more" } else { "less" }))
    });
    if !uncounted.is_empty() {
        out.push(format!(
            "The external reading disagrees with the counted bytes of {}: trust neither yet.",
            list(&uncounted)
        ));
    }
    let emulated = names(comparison, |entry| entry.row.emulated.then(String::new));
    if !emulated.is_empty() {
        out.push(format!(
            "The arithmetic of {} is emulated: the memory is real, the speed is not a GPU's.",
            list(&emulated)
        ));
    }
    out
}

fn mixed_versions(comparison: &Comparison) -> Option<String> {
    let versions = several(comparison.entries().flat_map(|entry| &entry.versions));
    (versions.len() > 1).then(|| {
        format!(
            "The rows come from several versions of runner ({}): compare with care, or sweep again with `--fresh`.",
            versions.join(", ")
        )
    })
}

/// The same training on processors with other units.
fn mixed_instruction_sets(comparison: &Comparison) -> Option<String> {
    let sets = several(comparison.entries().flat_map(|entry| &entry.instruction_sets));
    (sets.len() > 1).then(|| {
        format!(
            "The rows were computed with several instruction sets ({}): the same training then differs in the last \
             digits, and so do digests.",
            sets.join(", ")
        )
    })
}

/// The distinct names, sorted.
fn several<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let names: BTreeSet<&str> = names.map(String::as_str).filter(|name| !name.is_empty()).collect();
    names.into_iter().collect()
}
