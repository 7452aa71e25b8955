//! Sums a run's `memory.csv` per kind of operation, and per phase and scope. Names are read from the file, so that results of
//! another version of the program can be read.

use serde::Deserialize;

/// The columns of `memory.csv` that are used here.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) section: String,
    pub(super) phase: String,
    pub(super) scope: String,
    pub(super) operation: String,
    /// This and the fields up to `moved_bytes` count a single execution.
    pub(super) ms: f64,
    pub(super) times_per_step: u64,
    pub(super) flops: u64,
    pub(super) moved_bytes: u64,
    /// After the operation.
    pub(super) live_bytes: u64,
}

/// The step time that the operations' times are parts of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) ms: f64,
    pub(super) data_wait_ms: f64,
}

/// Totals of operations in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) calls: u64,
    pub(super) ms: f64,
    pub(super) flops: u64,
    pub(super) moved_bytes: u64,
}

/// Live bytes of a range of instructions: before the first, after the last, and at the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Live {
    pub(super) before: u64,
    pub(super) peak: u64,
    pub(super) after: u64,
}

/// A scope in a phase; or several that differ in a number, such as `blocks.*.mlp`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scope {
    pub(super) name: String,
    /// The number of scopes that share the name.
    pub(super) members: Vec<String>,
    pub(super) work: Work,
    pub(super) live: Live,
}

/// A phase of the step with its scopes, in the order of their first instructions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phase {
    pub(super) name: String,
    pub(super) work: Work,
    pub(super) live: Live,
    pub(super) scopes: Vec<Scope>,
}

/// The time and memory of a step, by operation and by scope.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Profile {
    pub(super) all: Work,
    /// Per kind of operation, longest first.
    pub(super) operations: Vec<(String, Work)>,
    pub(super) phases: Vec<Phase>,
    /// Time of allocations and frees in a step.
    pub(super) allocation_ms: f64,
    /// Time that the step's queues waited for each other.
    pub(super) wait_ms: f64,
    /// Time of sections outside steps, by section.
    pub(super) apart: Vec<(String, f64)>,
}

/// The kind of a line.
enum Activity {
    Operation,
    Allocation,
    Wait,
}

impl Line {
    fn activity(&self) -> Activity {
        match self.operation.as_str() {
            "allocate" | "free" | "leak" | "collect" => Activity::Allocation,
            "wait" => Activity::Wait,
            _ => Activity::Operation,
        }
    }

    /// Totals in one step. A copy's time is that of enqueueing it, not of the transfer.
    fn work(&self) -> Work {
        let times = self.times_per_step;
        let moved_bytes = if self.operation == "copy" { 0 } else { self.moved_bytes };
        Work {
            calls: times,
            ms: self.ms * times as f64,
            flops: self.flops.saturating_mul(times),
            moved_bytes: moved_bytes.saturating_mul(times),
        }
    }
}

impl Work {
    fn add(&mut self, other: Work) {
        // The file may hold any numbers.
        self.calls = self.calls.saturating_add(other.calls);
        self.ms += other.ms;
        self.flops = self.flops.saturating_add(other.flops);
        self.moved_bytes = self.moved_bytes.saturating_add(other.moved_bytes);
    }
}

impl Live {
    fn add(&mut self, after: u64) {
        self.peak = self.peak.max(after);
        self.after = after;
    }
}

impl Profile {
    pub(super) fn of(lines: &[Line]) -> Profile {
        let (step, apart): (Vec<&Line>, Vec<&Line>) = lines.iter().partition(|line| line.times_per_step > 0);
        let mut profile = Profile::default();
        for line in apart {
            *entry(&mut profile.apart, &line.section) += line.ms;
        }
        // A step starts with the bytes that the previous one left live.
        let mut before = step.last().map_or(0, |line| line.live_bytes);
        for line in step {
            let phase = phase_of(&mut profile.phases, line, before);
            let scope = scope_of(&mut phase.scopes, line, before);
            if !scope.members.contains(&line.scope) {
                scope.members.push(line.scope.clone());
            }
            scope.live.add(line.live_bytes);
            phase.live.add(line.live_bytes);
            before = line.live_bytes;
            match line.activity() {
                Activity::Operation => {
                    scope.work.add(line.work());
                    phase.work.add(line.work());
                    profile.all.add(line.work());
                    entry(&mut profile.operations, &line.operation).add(line.work());
                }
                Activity::Allocation => profile.allocation_ms += line.work().ms,
                Activity::Wait => profile.wait_ms += line.work().ms,
            }
        }
        profile.operations.sort_by(|(_, a), (_, b)| b.ms.total_cmp(&a.ms));
        for phase in &mut profile.phases {
            // Scopes that only free values are left out.
            phase.scopes.retain(|scope| scope.work.calls > 0);
        }
        profile
    }
}

/// The value of a name, inserted if absent.
fn entry<'a, T: Default>(entries: &'a mut Vec<(String, T)>, name: &str) -> &'a mut T {
    let index = entries.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
        entries.push((name.to_owned(), T::default()));
        entries.len() - 1
    });
    &mut entries[index].1
}

fn phase_of<'a>(phases: &'a mut Vec<Phase>, line: &Line, before: u64) -> &'a mut Phase {
    let index = phases.iter().position(|phase| phase.name == line.phase).unwrap_or_else(|| {
        let live = Live { before, peak: before, after: before };
        let (name, work) = (line.phase.clone(), Work::default());
        phases.push(Phase { name, work, live, scopes: Vec::new() });
        phases.len() - 1
    });
    &mut phases[index]
}

fn scope_of<'a>(scopes: &'a mut Vec<Scope>, line: &Line, before: u64) -> &'a mut Scope {
    let name = group(&line.scope);
    let index = scopes.iter().position(|scope| scope.name == name).unwrap_or_else(|| {
        let live = Live { before, peak: before, after: before };
        scopes.push(Scope { name, members: Vec::new(), work: Work::default(), live });
        scopes.len() - 1
    });
    &mut scopes[index]
}

/// Replaces the layer's number: `blocks.3.mlp` becomes `blocks.*.mlp`.
pub(super) fn group(scope: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = scope.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}
