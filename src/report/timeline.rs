//! The timeline of a step from a run's `memory.csv`: measured live bytes by role at each operation, and the values that
//! they consist of.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::run_files::Reader;
use device::{ByRole, Role};

/// The most operations of a timeline; larger steps have none.
pub(crate) const MOST_OPERATIONS: usize = 5000;
/// Layers are joined to at most this number of ranges.
const MOST_LAYERS: usize = 10;

/// The operations of one optimizer step, in the order of the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Timeline {
    /// Distinct texts: `backward of blocks.3.mlp: linear-weight-gradient`.
    pub(crate) texts: Vec<String>,
    /// By operation: the index of its text, and its executions per step.
    pub(crate) operations: Vec<(usize, u64)>,
    /// The roles that have bytes.
    pub(crate) roles: Vec<RoleBytes>,
    /// Names of layers, or of ranges of layers.
    pub(crate) layers: Vec<String>,
    /// In the order of their allocation.
    pub(crate) values: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct RoleBytes {
    pub(crate) name: &'static str,
    pub(crate) color: usize,
    /// By operation.
    pub(crate) bytes: Vec<u64>,
}

/// A value and its lifetime.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Value {
    pub(crate) name: String,
    /// Index in the timeline's roles.
    pub(crate) role: usize,
    /// Index in the timeline's layers.
    pub(crate) layer: usize,
    pub(crate) bytes: u64,
    /// The first and the last operation during which it is live.
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Timeline {
    /// The most live bytes at any operation.
    pub(crate) fn peak(&self) -> u64 {
        let total = |at: usize| self.roles.iter().map(|role| role.bytes[at]).fold(0, u64::saturating_add);
        (0..self.operations.len()).map(total).max().unwrap_or(0)
    }
}

/// A line of `memory.csv`.
struct Line {
    section: String,
    phase: String,
    scope: String,
    operation: String,
    value: String,
    times_per_step: u64,
    live: ByRole,
}

/// `None` if a column is missing, as in files of older versions, if no step was recorded, or if the step is too large.
///
/// # Errors
/// A line is malformed.
pub(crate) fn read(mut reader: Reader) -> Result<Option<Timeline>, String> {
    let header = reader.headers().map_err(|error| error.to_string())?.clone();
    let at = |name: &str| header.iter().position(|column| column == name);
    let fixed = ["section", "phase", "scope", "operation", "value", "times_per_step"].map(at);
    let [Some(section), Some(phase), Some(scope), Some(operation), Some(value), Some(times)] = fixed else {
        return Ok(None);
    };
    let roles: Vec<(Role, usize)> =
        Role::ALL.into_iter().filter_map(|role| Some((role, at(&role.column())?))).collect();
    let mut lines = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let text = |at: usize| record.get(at).unwrap_or_default().to_owned();
        let number = |at: usize| {
            let line = record.position().map_or(0, csv::Position::line);
            let wrong =
                |_| format!("line {line}, column `{}`: `{}` is not a number", &header[at], &record[at]);
            record[at].parse::<u64>().map_err(wrong)
        };
        let mut live = ByRole::default();
        for (role, at) in &roles {
            live[*role] = number(*at)?;
        }
        lines.push(Line {
            section: text(section),
            phase: text(phase),
            scope: text(scope),
            operation: text(operation),
            value: text(value),
            times_per_step: number(times)?,
            live,
        });
    }
    Ok(Some(of(&lines)).filter(|timeline| (1..=MOST_OPERATIONS).contains(&timeline.operations.len())))
}

/// A value whose lifetime is being read.
struct Known {
    name: String,
    role: Role,
    bytes: u64,
    first: usize,
    last: Option<usize>,
}

/// A line holds the live bytes after its last execution. Allocations and frees change them by the bytes of their values;
/// those of values on the host change nothing.
fn of(lines: &[Line]) -> Timeline {
    let is_start = |line: &&Line| line.section == "start";
    // Instructions of the first iteration, as of lazy initialisation, run before the recorded steps.
    let is_step = |line: &&Line| line.times_per_step > 0;
    let mut values = LiveValues::default();
    let mut before = ByRole::default();
    for line in lines.iter().filter(is_start) {
        values.apply(line, &before, 0);
        before = line.live;
    }
    // A step begins with the bytes that the previous one left.
    before = lines.iter().rfind(is_step).map_or_else(ByRole::default, |line| line.live);
    let mut operations: Vec<&Line> = Vec::new();
    for line in lines.iter().filter(is_step) {
        if !values.apply(line, &before, operations.len()) {
            operations.push(line);
        }
        before = line.live;
    }
    let end = operations.len().saturating_sub(1);
    let mut values = values.all;
    values.retain(|value| value.first <= value.last.unwrap_or(end));
    for role in Role::ALL {
        let unnamed = |(at, line): (usize, &&Line)| {
            let of_role = values.iter().filter(|value| value.role == role);
            let live = of_role.filter(|value| value.first <= at && at <= value.last.unwrap_or(end));
            line.live[role].saturating_sub(live.map(|value| value.bytes).fold(0, u64::saturating_add))
        };
        // Such as lazily initialised parameters, and leaks of earlier steps.
        let bytes = operations.iter().enumerate().map(unnamed).min().unwrap_or(0);
        if bytes > 0 {
            let name = format!("{}, allocated before the recorded steps", role.name());
            values.push(Known { name, role, bytes, first: 0, last: None });
        }
    }
    finish(&operations, &values, end)
}

/// The values of the lines so far.
#[derive(Default)]
struct LiveValues {
    all: Vec<Known>,
    /// By name: the indices of live values, since a name may have several.
    live: HashMap<String, Vec<usize>>,
}

impl LiveValues {
    /// Follows an allocation or a free before operation number `next`. Returns whether the line is one, or a wait.
    fn apply(&mut self, line: &Line, before: &ByRole, next: usize) -> bool {
        // The remainders of a cache's blocks change beside the value.
        let roles = Role::ALL.into_iter().filter(|role| *role != Role::Rounding);
        let change =
            roles.map(|role| (role, line.live[role].abs_diff(before[role]))).find(|(_, bytes)| *bytes > 0);
        let name = line.value.clone();
        match (line.operation.as_str(), change) {
            ("allocate", Some((role, bytes))) => {
                self.live.entry(name.clone()).or_default().push(self.all.len());
                self.all.push(Known { name, role, bytes, first: next, last: None });
            }
            ("free", Some((role, bytes))) => {
                let of_name = self.live.entry(name.clone()).or_default();
                let is_freed = |at: &usize| self.all[*at].role == role && self.all[*at].bytes == bytes;
                let known = of_name.iter().rposition(is_freed).map(|at| of_name.remove(at));
                match (known, next.checked_sub(1)) {
                    (Some(at), Some(last)) => self.all[at].last = Some(last),
                    // Freed before the first operation.
                    (Some(at), None) => self.all[at].first = usize::MAX,
                    // Allocated at the end of the step before.
                    (None, Some(last)) => {
                        self.all.push(Known { name, role, bytes, first: 0, last: Some(last) })
                    }
                    (None, None) => {}
                }
            }
            ("allocate" | "free" | "wait" | "leak" | "empty cache", _) => {}
            _ => return false,
        }
        true
    }
}

fn finish(operations: &[&Line], values: &[Known], end: usize) -> Timeline {
    let mut timeline = Timeline::default();
    let mut texts: HashMap<String, usize> = HashMap::new();
    for line in operations {
        let text = format!("{} of {}: {}", line.phase, line.scope, line.operation);
        let next = texts.len();
        let index = *texts.entry(text.clone()).or_insert(next);
        if index == next {
            timeline.texts.push(text);
        }
        timeline.operations.push((index, line.times_per_step));
    }
    let used = |role: &Role| operations.iter().any(|line| line.live[*role] > 0);
    let roles: Vec<Role> = Role::ALL.into_iter().filter(used).collect();
    let bytes = |role: Role| operations.iter().map(|line| line.live[role]).collect();
    timeline.roles = roles
        .iter()
        .map(|role| RoleBytes { name: role.name(), color: *role as usize, bytes: bytes(*role) })
        .collect();
    let names: Vec<&str> = values.iter().map(|value| layer(&value.name)).collect();
    let (layers, ranges) = ranges(&names);
    timeline.layers = layers;
    let value = |(at, value): (usize, &Known)| {
        Some(Value {
            name: value.name.clone(),
            role: roles.iter().position(|role| *role == value.role)?,
            layer: ranges[at],
            bytes: value.bytes,
            first: value.first,
            last: value.last.unwrap_or(end),
        })
    };
    timeline.values = values.iter().enumerate().filter_map(value).collect();
    timeline
}

/// `blocks.3` of `blocks.3.mlp.hidden`, `embedding` of `embedding.table`.
fn layer(name: &str) -> &str {
    if let Some((_, unnamed)) = name.split_once(", ") {
        return unnamed;
    }
    let mut dots = name.match_indices('.').map(|(at, _)| at);
    let (first, second) = (dots.next(), dots.next());
    let is_numbered = first.is_some_and(|at| name[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    match first {
        Some(_) if is_numbered => &name[..second.unwrap_or(name.len())],
        Some(at) => &name[..at],
        None => name,
    }
}

/// Names of the layers, successive numbered ones joined to ranges if there are many, and each value's index of them.
fn ranges(of_values: &[&str]) -> (Vec<String>, Vec<usize>) {
    let mut seen = HashSet::new();
    let mut distinct: Vec<&str> = of_values.iter().copied().filter(|name| seen.insert(*name)).collect();
    let split = |name: &str| {
        let (stem, number) = name.rsplit_once('.')?;
        Some((stem.to_owned(), number.parse::<u64>().ok()?))
    };
    distinct.sort_by_key(|name| split(name));
    let (numbered, others): (Vec<&str>, Vec<&str>) =
        distinct.into_iter().partition(|name| split(name).is_some());
    // Layers beyond the last name of their own share one.
    let own = others.len().min(MOST_LAYERS / 2);
    let room = MOST_LAYERS - own - usize::from(own < others.len());
    let size = numbered.len().div_ceil(room).max(1);
    let mut layers: Vec<String> = others[..own].iter().map(|name| (*name).to_owned()).collect();
    let mut index: HashMap<&str, usize> = others[..own].iter().copied().zip(0..).collect();
    for range in numbered.chunks(size) {
        index.extend(range.iter().map(|name| (*name, layers.len())));
        let last = range.last().and_then(|last| last.rsplit_once('.')).filter(|_| range.len() > 1);
        layers.push(match last {
            Some((_, number)) => format!("{} to {number}", range[0]),
            None => range[0].to_owned(),
        });
    }
    if own < others.len() {
        index.extend(others[own..].iter().map(|name| (*name, layers.len())));
        layers.push("other layers".to_owned());
    }
    let indices = of_values.iter().map(|name| index[name]).collect();
    (layers, indices)
}
