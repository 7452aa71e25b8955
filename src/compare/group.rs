//! Groups of comparable entries: same machine, same axis point.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::axes;
use super::entry::{NOISY, Relative, TableEntry};
use super::numbers::size;
use super::{Basis, CompareError, Sort};
use base::statistics::{self, Difference};
use results::Row;

#[derive(Debug)]
pub(super) struct TableGroup {
    /// `batch 16`; empty for a single group.
    pub(super) heading: String,
    pub(super) entries: Vec<TableEntry>,
    /// Index of the baseline.
    pub(super) baseline: Option<usize>,
}

impl TableGroup {
    /// ` at batch 16`, for sentences.
    pub(super) fn at_heading(&self) -> String {
        if self.heading.is_empty() { String::new() } else { format!(" at {}", self.heading) }
    }

    pub(super) fn base(&self) -> Option<&TableEntry> {
        self.baseline.map(|at| &self.entries[at])
    }
}

/// The baseline's label: the requested one, else the experiment's, else the first entry's.
pub(super) fn baseline(
    experiment: &str,
    entries: &[TableEntry],
    requested: Option<&str>,
) -> Result<String, CompareError> {
    let find = |name: &str| {
        let begins = |with: String| entries.iter().find(|entry| entry.label.starts_with(&with));
        let found = entries.iter().find(|entry| entry.label == name);
        // With keys swept inside the strategy, or from one of several tables.
        found.or_else(|| begins(format!("{name}/"))).or_else(|| begins(format!("{name} (")))
    };
    let Some(requested) = requested else {
        let named = |entry: &&TableEntry| !entry.row.baseline.is_empty();
        let mut seen = HashSet::new();
        let baselines = entries.iter().filter(named).map(|entry| entry.row.baseline.as_str());
        let found = baselines.filter(|name| seen.insert(*name)).find_map(find);
        let label = found.or(entries.first()).map(|entry| entry.label.clone());
        return Ok(label.unwrap_or_default());
    };
    find(requested).map(|entry| entry.label.clone()).ok_or_else(|| {
        let mut known: Vec<&str> = Vec::new();
        for entry in entries {
            if !known.contains(&entry.label.as_str()) {
                known.push(&entry.label);
            }
        }
        CompareError::UnknownBaseline {
            experiment: experiment.to_string(),
            name: requested.to_string(),
            known: known.join(", "),
        }
    })
}

/// Groups in the order of the rows, and the number of entries without a value of the key `by`.
pub(super) fn split(
    entries: Vec<TableEntry>,
    baseline: &str,
    by: Option<&str>,
    sort: Sort,
    basis: Basis,
) -> (Vec<TableGroup>, usize) {
    let keys = axes::all(&entries);
    let machines = machines(&entries);
    let mut groups: Vec<TableGroup> = Vec::new();
    let mut indices: HashMap<String, usize> = HashMap::new();
    let mut left_out = 0;
    for mut entry in entries {
        let mut parts: Vec<String> = Vec::new();
        if machines.len() > 1 {
            parts.push(machine(&entry));
        }
        if let Some(by) = by {
            let Some((_, value)) = entry.row.axes.iter().find(|(key, _)| key == by) else {
                left_out += 1;
                continue;
            };
            parts.push(axes::label_without(&entry.row, |key| key == by));
            entry.label = axes::point(by, value, &keys);
        }
        let outer = axes::outer(&entry.row).into_iter().filter(|(key, _)| Some(key.as_str()) != by);
        parts.extend(outer.map(|(key, value)| axes::point(key, value, &keys)));
        let heading = parts.join(", ");
        let index = *indices.entry(heading.clone()).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => group.entries.push(entry),
            None => groups.push(TableGroup { heading, entries: vec![entry], baseline: None }),
        }
    }
    for group in &mut groups {
        distinguish(&mut group.entries);
        group.sort(sort, if by.is_some() { None } else { Some(baseline) });
        group.relate(basis);
    }
    (groups, left_out)
}

/// All machines of the rows. Rows that never reached a machine are ignored.
pub(super) fn machines<'a>(entries: impl IntoIterator<Item = &'a TableEntry>) -> Vec<String> {
    let mut machines: Vec<String> = Vec::new();
    for machine in entries.into_iter().filter(|entry| !entry.row.device.is_empty()).map(machine) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    machines
}

/// The device, with the requested limits of its and the host's memory.
pub(super) fn machine(entry: &TableEntry) -> String {
    machine_of(&entry.row)
}

pub(super) fn machine_of(row: &Row) -> String {
    let Row { device, limited, limit_bytes, host_limit_bytes, .. } = row;
    let own = limit_bytes.filter(|_| *limited).map(|limit| format!(" limited to {}", size(limit)));
    let host = host_limit_bytes.map(|limit| format!(", its host to {}", size(limit)));
    format!("{device}{}{}", own.unwrap_or_default(), host.unwrap_or_default())
}

/// Equal for strategies that share a run. If the data set is missing, a run has no id.
fn identity(row: &Row) -> &str {
    if row.run_id.is_empty() { &row.configuration } else { &row.run_id }
}

/// Adds the run id to equal labels within a group: runs with other data or another number of threads.
fn distinguish(entries: &mut [TableEntry]) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for entry in entries.iter() {
        *counts.entry(entry.label.clone()).or_default() += 1;
    }
    for entry in entries {
        if counts[&entry.label] > 1 && !entry.row.run_id.is_empty() {
            let id: String = entry.row.run_id.chars().take(6).collect();
            entry.label = format!("{} [{id}]", entry.label);
        }
    }
}

impl TableGroup {
    /// Sorts, and finds the baseline: by its label, else the first in the order of the file.
    fn sort(&mut self, sort: Sort, baseline: Option<&str>) {
        let is_baseline = |entry: &TableEntry| baseline.is_some_and(|name| entry.row.strategy == name);
        // Of several runs of the baseline strategy, prefer one with a known peak.
        let candidates =
            (0..self.entries.len()).filter(|at| baseline.is_none() || is_baseline(&self.entries[*at]));
        if let Some(at) = candidates.min_by_key(|at| (self.entries[*at].memory.is_none(), *at)) {
            self.entries[at].relative.is_baseline = true;
        }
        // Entries without measured speed are sorted by their estimate.
        let estimate = |entry: &TableEntry| entry.estimated_pace().map(f64::recip);
        let speed = |entry: &TableEntry| entry.speed.median().or_else(|| estimate(entry));
        self.entries.sort_by(|a, b| match sort {
            Sort::File => Ordering::Equal,
            Sort::Name => a.label.cmp(&b.label),
            Sort::Memory => known_first(a.memory, b.memory, Ord::cmp),
            Sort::Speed => known_first(speed(a), speed(b), |a, b| b.total_cmp(a)),
        });
        self.baseline = self.entries.iter().position(|entry| entry.relative.is_baseline);
    }

    /// Sets each entry's `relative`.
    fn relate(&mut self, basis: Basis) {
        let base = self.base().cloned();
        let owners = self.owners();
        let related: Vec<Relative> = (0..self.entries.len())
            .map(|at| {
                let entry = &self.entries[at];
                let mut relative = base.as_ref().map(|base| relative_to(base, entry)).unwrap_or_default();
                relative.is_baseline = Some(at) == self.baseline;
                let owner = owners.get(identity(&entry.row)).filter(|owner| **owner != at);
                relative.same_as = owner.map(|owner| self.entries[*owner].label.clone());
                relative
            })
            .collect();
        for (entry, relative) in self.entries.iter_mut().zip(related) {
            entry.relative = relative;
        }
        let is_duplicate = |entry: &TableEntry| {
            !entry.row.no_effect.is_empty() && self.entries.iter().any(|other| entry.is_duplicate_of(other))
        };
        let duplicates: Vec<bool> = self.entries.iter().map(is_duplicate).collect();
        for (entry, is_duplicate) in self.entries.iter_mut().zip(duplicates) {
            entry.relative.is_duplicate = is_duplicate;
        }
        if basis == Basis::Measured && self.is_ranked() {
            let front: Vec<bool> = (0..self.entries.len()).map(|at| self.is_on_front(at)).collect();
            for (entry, pareto) in self.entries.iter_mut().zip(front) {
                entry.relative.pareto = pareto;
            }
        }
    }

    /// Whether the differences in speed of all candidates are established, so that there is a Pareto front.
    fn is_ranked(&self) -> bool {
        let measured = |entry: &&TableEntry| {
            entry.is_candidate() && !entry.relative.is_duplicate && entry.speed.len() > 0
        };
        let compared: Vec<&TableEntry> = self.entries.iter().filter(measured).collect();
        // Usually all have the same rounds, so that one pair stands for every other.
        if let [one, other, ..] = compared.as_slice()
            && compared.iter().all(|entry| entry.speed.has_same_rounds(&one.speed))
            && one.speed_over(other).is_some_and(|ratio| ratio.interval.is_some())
        {
            return true;
        }
        compared.iter().enumerate().all(|(at, one)| {
            compared[at + 1..].iter().all(|other| one.difference(other) != Difference::Unknown)
        })
    }

    /// The entry that represents each run: the baseline if it shares the run, else the first entry.
    fn owners(&self) -> HashMap<String, usize> {
        let mut owners = HashMap::new();
        for (at, entry) in
            self.entries.iter().enumerate().filter(|(_, entry)| !identity(&entry.row).is_empty())
        {
            let owner = owners.entry(identity(&entry.row).to_owned()).or_insert(at);
            if Some(at) == self.baseline {
                *owner = at;
            }
        }
        owners
    }

    /// Whether no other entry needs less memory, live or reserved, without needing more of the other and without being
    /// measurably slower, or is faster without needing more memory.
    fn is_on_front(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        // Of equal alternatives, the front shows the first, preferring those whose keys all have an effect.
        let represents = |other_at: usize, other: &TableEntry| {
            let lacks_effect = |entry: &TableEntry| !entry.row.no_effect.is_empty();
            other.needs() == entry.needs()
                && other.difference(entry) == Difference::None
                && other.standing() >= entry.standing()
                && (lacks_effect(other), other_at) < (lacks_effect(entry), at)
        };
        entry.is_candidate()
            && !entry.relative.is_duplicate
            && entry.speed.len() > 0
            && !self.entries.iter().enumerate().any(|(other_at, other)| {
                other.is_candidate()
                    && !other.relative.is_duplicate
                    && (dominates(other, entry) || represents(other_at, other))
            })
    }
}

fn dominates(a: &TableEntry, b: &TableEntry) -> bool {
    // Before the speeds, whose comparison takes longer.
    if !a.needs_no_more(b) {
        return false;
    }
    let Some(speed) = a.speed_over(b) else { return false };
    let needs_less = !b.needs_no_more(a);
    // The table shows `a` as no slower than the baseline, and `b` as no faster.
    let not_slower = a.standing() >= Some(0) && b.standing().is_some_and(|standing| standing <= 0);
    match speed.difference {
        Difference::Unknown => false,
        Difference::More => true,
        _ if not_slower => needs_less || a.standing() > b.standing(),
        // A noisy row must not dominate faster rows that its wide interval covers.
        Difference::None => needs_less && speed.half_width().is_some_and(|half| half <= NOISY),
        Difference::Less => false,
    }
}

fn relative_to(base: &TableEntry, entry: &TableEntry) -> Relative {
    let share =
        |value: f64, base: f64| (base != 0.0).then_some(value / base).filter(|ratio| ratio.is_finite());
    let share_of_bytes = |(a, b): (u64, u64)| share(a as f64, b as f64);
    let memory = entry.memory.zip(base.memory).and_then(share_of_bytes);
    let reserved = entry.reserved.zip(base.reserved).and_then(share_of_bytes);
    let other_task = entry.trains() != base.trains();
    let comparable = !other_task && entry.has_comparable_loss(base);
    let losses =
        entry.loss.as_ref().zip(base.loss.as_ref()).filter(|(a, b)| a.source == b.source && comparable);
    Relative {
        memory,
        reserved,
        speed: entry.speed_over(base),
        outliers: outliers(&entry.speed.ratios(&base.speed)),
        loss: losses.and_then(|(a, b)| a.values.over(&b.values)),
        no_alternative: other_task || entry.leaks() && !base.leaks(),
        other_start_time: entry
            .start_ms()
            .zip(base.start_ms())
            .is_some_and(|(a, b)| differs_noticeably(a, b)),
        less_to_start: base.start_above_training() && entry.row.start_peak_bytes < base.row.start_peak_bytes,
        ..Relative::default()
    }
}

/// The number of outliers that also differ from the median by more than [`NOISY`].
fn outliers(ratios: &[f64]) -> usize {
    let Some(center) = statistics::median(ratios) else { return 0 };
    let is_large = |at: &usize| (ratios[*at] / center - 1.0).abs() > NOISY;
    statistics::outliers(ratios).into_iter().filter(is_large).count()
}

/// Whether two times differ by more than half of the shorter one, and by more than other work of a starting process
/// would explain.
fn differs_noticeably(a: f64, b: f64) -> bool {
    const NOTICED_MS: f64 = 100.0;
    (a - b).abs() > NOTICED_MS.max(a.min(b) / 2.0)
}

fn known_first<T>(a: Option<T>, b: Option<T>, order: impl Fn(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => order(&a, &b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}
