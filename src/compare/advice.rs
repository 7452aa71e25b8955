//! Advice from predictions, in sentences: the least memory, the fastest strategy that fits, and what more memory
//! would allow.

use super::entry::TableEntry;
use super::group::TableGroup;
use super::numbers::{milliseconds, ratio, size};
use super::sentence::subject;
use results::Status;

/// Estimates within this factor count as equal: they are not more accurate.
const EQUAL_WITHIN: f64 = 1.05;

pub(super) fn sentence(group: &TableGroup) -> Option<String> {
    let fitting: Vec<&TableEntry> = group.entries.iter().filter(|entry| entry.is_candidate()).collect();
    let mut text = least_memory(group, &fitting)?;
    let fastest = fastest(&fitting);
    text.extend(fastest.and_then(|fastest| fastest_that_fits(group, &fitting, fastest)));
    text.extend(with_more_memory(group, fastest));
    text.extend(smallest_limit(group));
    Some(subject(group, &text))
}

fn least_memory(group: &TableGroup, fitting: &[&TableEntry]) -> Option<String> {
    let Some(smallest) = fitting.iter().copied().min_by_key(|entry| entry.needs()) else {
        let any_oom = group.entries.iter().any(|entry| entry.status == Status::Oom);
        return Some(if any_oom { "no strategy fits." } else { "no strategy can run." }.to_owned());
    };
    let least = smallest.peaks()?;
    Some(match group.base() {
        Some(base) if base.needs() > smallest.needs() => {
            format!("{} needs the least memory: {least}{}.", smallest.label, smallest.share_of(Some(base)))
        }
        _ if fitting.len() == 1 => format!("{} needs {least}.", smallest.label),
        _ => format!("no strategy needs less memory than {} ({least}).", smallest.label),
    })
}

/// The entry with the least memory among those whose estimated time is within [`EQUAL_WITHIN`] of the shortest.
fn fastest<'a>(entries: &[&'a TableEntry]) -> Option<&'a TableEntry> {
    let least = entries.iter().filter_map(|entry| entry.estimated_pace()).min_by(f64::total_cmp)?;
    let is_fastest =
        |entry: &&&TableEntry| entry.estimated_pace().is_some_and(|pace| pace <= EQUAL_WITHIN * least);
    entries.iter().filter(is_fastest).min_by_key(|entry| entry.needs()).copied()
}

fn fastest_that_fits(group: &TableGroup, fitting: &[&TableEntry], fastest: &TableEntry) -> Option<String> {
    if fitting.len() < 2 {
        return None;
    }
    let (ms, own) = (fastest.row.estimated_step_ms?, fastest.estimated_pace()?);
    let beside = group.base().filter(|base| base.label != fastest.label).and_then(|base| {
        let of_base = base.estimated_pace()?;
        let oom = if base.status == Status::Oom { ", which does not fit" } else { "" };
        Some(match of_base / own {
            times if times > EQUAL_WITHIN => format!(", {} times {}'s speed{oom}", ratio(times), base.label),
            times if times > 1.0 / EQUAL_WITHIN => format!(", as fast as {}{oom}", base.label),
            times => format!(", {} of {}'s speed{oom}", ratio(times), base.label),
        })
    });
    Some(format!(
        " The fastest strategy that fits, by estimate, is {} ({} ms per step{}) in {}{}.",
        fastest.label,
        milliseconds(ms),
        beside.unwrap_or_default(),
        fastest.peaks()?,
        without_estimate(group)
    ))
}

/// `; not compared, for lack of an estimate: a, b`
fn without_estimate(group: &TableGroup) -> String {
    let can_run = |entry: &&TableEntry| entry.status == Status::Oom || entry.is_candidate();
    let unknown = group.entries.iter().filter(can_run).filter(|entry| entry.estimated_pace().is_none());
    let unknown: Vec<&str> = unknown.map(|entry| entry.label.as_str()).collect();
    if unknown.is_empty() {
        String::new()
    } else {
        format!("; not compared, for lack of an estimate: {}", unknown.join(", "))
    }
}

/// The entry that the smallest memory increase would admit. With known estimates, only entries faster than the fastest
/// that fits.
fn with_more_memory(group: &TableGroup, fastest: Option<&TableEntry>) -> Option<String> {
    let own = fastest.and_then(TableEntry::estimated_pace);
    let gains = |entry: &&TableEntry| match own {
        Some(own) => entry.estimated_pace().is_some_and(|other| other * EQUAL_WITHIN < own),
        None => true,
    };
    let short = |entry: &TableEntry| {
        entry.row.oom_short_bytes.filter(|_| entry.row.oom_pool.as_deref() == Some("device"))
    };
    let missing = group.entries.iter().filter(|entry| entry.status == Status::Oom).filter(gains);
    let (bytes, next) =
        missing.filter_map(|entry| Some((short(entry)?, entry))).min_by_key(|(bytes, _)| *bytes)?;
    let speed =
        own.zip(next.estimated_pace()).map(|(own, other)| format!(", {} times as fast", ratio(own / other)));
    Some(format!(" With {} more, {} would fit{}.", size(bytes), next.label, speed.unwrap_or_default()))
}

/// The smallest memory limit that suffices for at least one entry, by its reserved bytes.
fn smallest_limit(group: &TableGroup) -> Option<String> {
    let needed = |entry: &TableEntry| {
        let row = &entry.row;
        if row.torch_limit_bytes.is_some() {
            return row.torch_limit_bytes;
        }
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
    let context = if entry.row.context_bytes.is_some() { ", device context included" } else { "" };
    let row = &entry.row;
    let (by, retries) = match row.torch_limit_bytes.zip(row.predicted_reserved_peak_bytes) {
        None => (" By reserved bytes, the", ""),
        Some((limit, reserved)) if limit - row.context_bytes.unwrap_or(0) < reserved => {
            (" The", "; PyTorch then returns cached memory and tries again")
        }
        Some(_) => (" The", ""),
    };
    Some(format!("{by} smallest sufficient limit is {} ({}{context}{retries}).", size(bytes), entry.label))
}
