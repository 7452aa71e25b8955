//! What predictions say, in sentences: what needs the least, what loses the least time of what fits, and what more memory buys.

use super::entry::Entry;
use super::group::Group;
use super::numbers::{milliseconds, ratio, size};
use super::verdict::subject;
use results::Status;

/// Estimates closer than this are not told apart: they are no better.
const ALIKE: f64 = 1.05;

pub(super) fn sentence(group: &Group) -> Option<String> {
    let fitting: Vec<&Entry> = group.entries.iter().filter(|entry| entry.is_candidate()).collect();
    let mut text = needs_least(group, &fitting)?;
    let fastest = fastest(&fitting);
    text.extend(fastest.and_then(|fastest| loses_least(group, &fitting, fastest)));
    text.extend(more_memory(group, fastest));
    text.extend(smallest_limit(group));
    Some(subject(group, &text))
}

fn needs_least(group: &Group, fitting: &[&Entry]) -> Option<String> {
    let Some(smallest) = fitting.iter().copied().min_by_key(|entry| entry.memory) else {
        let fits_not = group.entries.iter().any(|entry| entry.status == Status::Oom);
        return Some(if fits_not { "nothing fits." } else { "nothing can run." }.to_owned());
    };
    let least = size(smallest.memory?);
    let needs_less = group.base().is_some_and(|base| base.memory > smallest.memory);
    Some(match (smallest.relative.memory, group.base()) {
        (Some(memory), Some(base)) if needs_less => {
            format!("{} needs the least, {least}, {} of {}.", smallest.label, ratio(memory), base.label)
        }
        _ if fitting.len() == 1 => format!("{} needs {least}.", smallest.label),
        _ => format!("nothing needs less than {} ({least}).", smallest.label),
    })
}

/// Of those that take about as long as the one that is estimated to take the least, the one that needs the least memory.
fn fastest<'a>(entries: &[&'a Entry]) -> Option<&'a Entry> {
    let least = entries.iter().filter_map(|entry| entry.estimated_pace()).min_by(f64::total_cmp)?;
    let is_alike = |entry: &&&Entry| entry.estimated_pace().is_some_and(|pace| pace <= ALIKE * least);
    entries.iter().filter(is_alike).min_by_key(|entry| entry.memory).copied()
}

/// What fits at the least loss of speed.
fn loses_least(group: &Group, fitting: &[&Entry], fastest: &Entry) -> Option<String> {
    if fitting.len() < 2 {
        return None;
    }
    let (ms, own) = (fastest.row.estimated_step_ms?, fastest.estimated_pace()?);
    let beside = group.base().filter(|base| base.label != fastest.label).and_then(|base| {
        let of_base = base.estimated_pace()?;
        let fits_not = if base.status == Status::Oom { ", which does not fit" } else { "" };
        Some(match of_base / own {
            times if times > ALIKE => format!(", {} times {}'s speed{fits_not}", ratio(times), base.label),
            times if times > 1.0 / ALIKE => format!(", as fast as {}{fits_not}", base.label),
            times => format!(", {} of {}'s speed{fits_not}", ratio(times), base.label),
        })
    });
    Some(format!(
        " Of what fits, {} loses the least time by estimate ({} ms a step{}) in {}.",
        fastest.label,
        milliseconds(ms),
        beside.unwrap_or_default(),
        size(fastest.memory?)
    ))
}

/// What the least more memory would buy that is faster than all that fits or, where no time is known, that does not fit.
fn more_memory(group: &Group, fastest: Option<&Entry>) -> Option<String> {
    let own = fastest.and_then(Entry::estimated_pace);
    let gains = |entry: &&Entry| match own {
        Some(own) => entry.estimated_pace().is_some_and(|other| other * ALIKE < own),
        None => true,
    };
    let short =
        |entry: &Entry| entry.row.oom_short_bytes.filter(|_| entry.row.oom_pool.as_deref() == Some("device"));
    let missing = group.entries.iter().filter(|entry| entry.status == Status::Oom).filter(gains);
    let (bytes, next) =
        missing.filter_map(|entry| Some((short(entry)?, entry))).min_by_key(|(bytes, _)| *bytes)?;
    let speed =
        own.zip(next.estimated_pace()).map(|(own, other)| format!(", {} times as fast", ratio(own / other)));
    Some(format!(" With {} more, {} would fit{}.", size(bytes), next.label, speed.unwrap_or_default()))
}

/// The least memory that a machine needs to run any of them.
fn smallest_limit(group: &Group) -> Option<String> {
    let needed = |entry: &Entry| {
        let row = &entry.row;
        match entry.status {
            Status::Ok => {
                Some(row.context_bytes.unwrap_or(0).saturating_add(row.predicted_reserved_peak_bytes?))
            }
            Status::Oom if row.oom_pool.as_deref() == Some("device") => {
                Some(row.limit_bytes?.saturating_add(row.oom_short_bytes?))
            }
            _ => None,
        }
    };
    let candidates = group.entries.iter().filter(|entry| entry.relative.same_as.is_none());
    let (bytes, entry) =
        candidates.filter_map(|entry| Some((needed(entry)?, entry))).min_by_key(|(bytes, _)| *bytes)?;
    let context = if entry.row.context_bytes.is_some() { ", with what the card's context takes" } else { "" };
    Some(format!(" The smallest limit that any runs in is {} ({}{context}).", size(bytes), entry.label))
}
