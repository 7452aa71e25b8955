//! The lines of a run's `memory.csv`, added up: per kind of operation, and per phase and scope. It goes by the
//! file's own words, so that the results of another version of the program can be read too.

use serde::Deserialize;

/// A line of `memory.csv`, as far as it is needed here.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    pub(super) section: String,
    pub(super) phase: String,
    pub(super) scope: String,
    pub(super) operation: String,
    /// From here to `moved_bytes`: of one time.
    pub(super) ms: f64,
    pub(super) times_per_step: u64,
    pub(super) flops: u64,
    pub(super) moved_bytes: u64,
    /// Afterwards.
    pub(super) live_bytes: u64,
}

/// The step that the operations' times add up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) ms: f64,
    pub(super) data_wait_ms: f64,
}

/// What operations did in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) calls: u64,
    pub(super) ms: f64,
    pub(super) flops: u64,
    pub(super) moved_bytes: u64,
}

/// Bytes that were live in a step: before the first of some instructions, after the last, and at the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Live {
    pub(super) before: u64,
    pub(super) peak: u64,
    pub(super) after: u64,
}

/// A scope in a phase, or several that differ in a number, such as `blocks.*.mlp`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scope {
    pub(super) name: String,
    /// The scopes that share the name.
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

/// Where a step's time goes, and memory with it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Profile {
    pub(super) all: Work,
    /// By kind, longest first.
    pub(super) operations: Vec<(String, Work)>,
    pub(super) phases: Vec<Phase>,
    /// Memory handed out and taken back, in a step.
    pub(super) allocation_ms: f64,
    /// What the step's queues waited for each other.
    pub(super) wait_ms: f64,
    /// What is no part of a step, by section: all that was done in it.
    pub(super) apart: Vec<(String, f64)>,
}

/// What a line stands for.
enum Activity {
    Operation,
    Allocation,
    Wait,
}

impl Line {
    fn activity(&self) -> Activity {
        match self.operation.as_str() {
            "allocate" | "free" | "leak" => Activity::Allocation,
            "wait" => Activity::Wait,
            _ => Activity::Operation,
        }
    }

    /// In one step. A copy's time is that of enqueueing it, which says nothing of how fast it was.
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
        // A table may hold any numbers.
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
        // A step begins with what the one before left live.
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
            // Where values are merely freed, nothing happens.
            phase.scopes.retain(|scope| scope.work.calls > 0);
        }
        profile
    }
}

/// The value of a name, which is new if it has none.
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

/// `blocks.3.mlp` is one of `blocks.*.mlp`.
pub(super) fn group(scope: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = scope.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}
