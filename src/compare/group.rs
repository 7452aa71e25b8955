//! Entries that may be compared: same machine, same axis point.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::axes;
use super::entry::{Entry, NOISY, Relative};
use super::numbers::size;
use super::{Basis, CompareError, Sort};
use base::statistics::{self, Difference};
use results::Row;

#[derive(Debug)]
pub(super) struct Group {
    /// `batch 16`; empty if there is nothing to tell it from other groups.
    pub(super) heading: String,
    pub(super) entries: Vec<Entry>,
    /// What the ratios of this group are against.
    pub(super) baseline: Option<usize>,
}

impl Group {
    /// ` at batch 16`, to end a sentence with.
    pub(super) fn place(&self) -> String {
        if self.heading.is_empty() { String::new() } else { format!(" at {}", self.heading) }
    }

    pub(super) fn base(&self) -> Option<&Entry> {
        self.baseline.map(|at| &self.entries[at])
    }
}

/// The label that ratios are against: the one asked for, or else the file's, or the first where no row is of that.
pub(super) fn baseline(
    experiment: &str,
    entries: &[Entry],
    asked: Option<&str>,
) -> Result<String, CompareError> {
    let find = |name: &str| {
        let swept_inside = format!("{name}/");
        let found = entries.iter().find(|entry| entry.label == name);
        found.or_else(|| entries.iter().find(|entry| entry.label.starts_with(&swept_inside)))
    };
    let Some(asked) = asked else {
        let named = |entry: &&Entry| !entry.row.baseline.is_empty();
        let mut seen = HashSet::new();
        let baselines = entries.iter().filter(named).map(|entry| entry.row.baseline.as_str());
        let found = baselines.filter(|name| seen.insert(*name)).find_map(find);
        let label = found.or(entries.first()).map(|entry| entry.label.clone());
        return Ok(label.unwrap_or_default());
    };
    find(asked).map(|entry| entry.label.clone()).ok_or_else(|| {
        let mut known: Vec<&str> = Vec::new();
        for entry in entries {
            if !known.contains(&entry.label.as_str()) {
                known.push(&entry.label);
            }
        }
        CompareError::UnknownBaseline {
            experiment: experiment.to_string(),
            name: asked.to_string(),
            known: known.join(", "),
        }
    })
}

/// Groups in the order of the rows, and how many entries do not lie on the axis `by`.
pub(super) fn split(
    entries: Vec<Entry>,
    baseline: &str,
    by: Option<&str>,
    sort: Sort,
    basis: Basis,
) -> (Vec<Group>, usize) {
    let keys = axes::all(&entries);
    let machines = machines(&entries);
    let mut groups: Vec<Group> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
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
        let place = *places.entry(heading.clone()).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.entries.push(entry),
            None => groups.push(Group { heading, entries: vec![entry], baseline: None }),
        }
    }
    for group in &mut groups {
        tell_apart(&mut group.entries);
        group.sort(sort, if by.is_some() { None } else { Some(baseline) });
        group.relate(basis);
    }
    (groups, left_out)
}

/// Every machine that a row comes from. Rows that never reached one do not count.
pub(super) fn machines<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<String> {
    let mut machines: Vec<String> = Vec::new();
    for machine in entries.into_iter().filter(|entry| !entry.row.device.is_empty()).map(machine) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    machines
}

/// The device, and the limits that it and its host were asked to keep to.
pub(super) fn machine(entry: &Entry) -> String {
    let Row { device, limited, limit_bytes, host_limit_bytes, .. } = &entry.row;
    let own = limit_bytes.filter(|_| *limited).map(|limit| format!(" limited to {}", size(limit)));
    let host = host_limit_bytes.map(|limit| format!(", its host to {}", size(limit)));
    format!("{device}{}{}", own.unwrap_or_default(), host.unwrap_or_default())
}

/// Equal for strategies that are one run. Without its data a run has no id.
fn identity(row: &Row) -> &str {
    if row.run_id.is_empty() { &row.configuration } else { &row.run_id }
}

/// The same strategy twice at one point: other data, another number of threads. Its run tells which.
fn tell_apart(entries: &mut [Entry]) {
    let mut times: HashMap<String, usize> = HashMap::new();
    for entry in entries.iter() {
        *times.entry(entry.label.clone()).or_default() += 1;
    }
    for entry in entries {
        if times[&entry.label] > 1 && !entry.row.run_id.is_empty() {
            let id: String = entry.row.run_id.chars().take(6).collect();
            entry.label = format!("{} [{id}]", entry.label);
        }
    }
}

impl Group {
    /// Sorts, and finds the baseline: by its label, or the first in the order of the file.
    fn sort(&mut self, sort: Sort, baseline: Option<&str>) {
        let is_baseline = |entry: &Entry| baseline.is_some_and(|name| entry.row.strategy == name);
        // A repeated strategy has its baseline in the run that has figures.
        let candidates =
            (0..self.entries.len()).filter(|at| baseline.is_none() || is_baseline(&self.entries[*at]));
        if let Some(at) = candidates.min_by_key(|at| (self.entries[*at].memory.is_none(), *at)) {
            self.entries[at].relative.is_baseline = true;
        }
        // What was not measured is in the order of its estimate.
        let estimate = |entry: &Entry| entry.estimated_pace().map(f64::recip);
        let speed = |entry: &Entry| entry.speed.median().or_else(|| estimate(entry));
        self.entries.sort_by(|a, b| match sort {
            Sort::File => Ordering::Equal,
            Sort::Name => a.label.cmp(&b.label),
            Sort::Memory => known_first(a.memory, b.memory, Ord::cmp),
            Sort::Speed => known_first(speed(a), speed(b), |a, b| b.total_cmp(a)),
        });
        self.baseline = self.entries.iter().position(|entry| entry.relative.is_baseline);
    }

    /// Fills in what each entry is worth beside the others.
    fn relate(&mut self, basis: Basis) {
        let base = self.base().cloned();
        let owners = self.owners();
        let related: Vec<Relative> = (0..self.entries.len())
            .map(|at| {
                let entry = &self.entries[at];
                let mut relative = base.as_ref().map(|base| against(entry, base)).unwrap_or_default();
                relative.is_baseline = Some(at) == self.baseline;
                let owner = owners.get(identity(&entry.row)).filter(|owner| **owner != at);
                relative.same_as = owner.map(|owner| self.entries[*owner].label.clone());
                relative
            })
            .collect();
        for (entry, relative) in self.entries.iter_mut().zip(related) {
            entry.relative = relative;
        }
        let is_idle = |entry: &Entry| {
            !entry.row.no_effect.is_empty() && self.entries.iter().any(|other| entry.is_idle_beside(other))
        };
        let idle: Vec<bool> = self.entries.iter().map(is_idle).collect();
        for (entry, idle) in self.entries.iter_mut().zip(idle) {
            entry.relative.idle = idle;
        }
        if basis == Basis::Measured && self.is_ranked() {
            let front: Vec<bool> = (0..self.entries.len()).map(|at| self.is_on_front(at)).collect();
            for (entry, pareto) in self.entries.iter_mut().zip(front) {
                entry.relative.pareto = pareto;
            }
        }
    }

    /// Whether enough is known of the speeds to say which alternatives are worth considering.
    fn is_ranked(&self) -> bool {
        let measured = |entry: &&Entry| entry.is_candidate() && !entry.relative.idle && entry.speed.len() > 0;
        let compared: Vec<&Entry> = self.entries.iter().filter(measured).collect();
        compared.iter().enumerate().all(|(at, one)| {
            compared[at + 1..].iter().all(|other| one.difference(other) != Difference::Unknown)
        })
    }

    /// Which entry each run belongs to: the first of the strategies that are one run, or the baseline, wherever
    /// sorting put it.
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

    /// Nothing else needs less memory without being slower, or is faster without needing more.
    fn is_on_front(&self, at: usize) -> bool {
        let entry = &self.entries[at];
        // Of alternatives that cannot be told apart, the front shows the first that does something.
        let stands_for = |other_at: usize, other: &Entry| {
            let idle = |entry: &Entry| !entry.row.no_effect.is_empty();
            other.memory == entry.memory
                && other.difference(entry) == Difference::None
                && (idle(other), other_at) < (idle(entry), at)
        };
        entry.is_candidate()
            && !entry.relative.idle
            && entry.speed.len() > 0
            && !self.entries.iter().enumerate().any(|(other_at, other)| {
                other.is_candidate()
                    && !other.relative.idle
                    && (beats(other, entry) || stands_for(other_at, other))
            })
    }
}

fn beats(a: &Entry, b: &Entry) -> bool {
    let Some(((a_bytes, b_bytes), speed)) = a.memory.zip(b.memory).zip(a.speed_beside(b)) else {
        return false;
    };
    match speed.difference {
        Difference::More => a_bytes <= b_bytes,
        // Noise must not let a row beat all that its wide interval touches.
        Difference::None => a_bytes < b_bytes && speed.half_width().is_some_and(|half| half <= NOISY),
        Difference::Less | Difference::Unknown => false,
    }
}

fn against(entry: &Entry, base: &Entry) -> Relative {
    let share =
        |value: f64, base: f64| (base != 0.0).then_some(value / base).filter(|ratio| ratio.is_finite());
    let memory = entry.memory.zip(base.memory).and_then(|(a, b)| share(a as f64, b as f64));
    let other_task = entry.trains() != base.trains();
    let losses = entry.loss.as_ref().zip(base.loss.as_ref()).filter(|(a, b)| a.of == b.of && !other_task);
    Relative {
        memory,
        speed: entry.speed_beside(base),
        outliers: outliers(&entry.speed.ratios(&base.speed)),
        loss: losses.and_then(|(a, b)| a.values.over(&b.values)),
        no_alternative: other_task || entry.leaks() && !base.leaks(),
        other_start_time: entry.start_ms().zip(base.start_ms()).is_some_and(|(a, b)| takes_other_time(a, b)),
        less_to_start: base.start_above_training() && entry.row.start_peak_bytes < base.row.start_peak_bytes,
        ..Relative::default()
    }
}

/// Rounds that are far from the others, both beside these and in what it would mean.
fn outliers(ratios: &[f64]) -> usize {
    let Some(center) = statistics::median(ratios) else { return 0 };
    let is_much = |at: &usize| (ratios[*at] / center - 1.0).abs() > NOISY;
    statistics::outliers(ratios).into_iter().filter(is_much).count()
}

/// By half of the shorter, and so much that nothing else a process does at first may be the reason.
fn takes_other_time(a: f64, b: f64) -> bool {
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
