//! Where memory stood after each instruction and how long it took: the profile people look for when they are out of
//! memory or of patience.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use compile::{Action, Instruction, Program, SectionKind};
use device::{ByRole, Event, Queue, Role};

/// What is known of one instruction, carried out any number of times.
#[derive(Clone, Copy, Default)]
struct Moment {
    /// After the last time.
    live: ByRole,
    /// Over all times, by the device's clock if it has one and by the host's otherwise. Of a queue beside the compute
    /// queue, that is what enqueueing took; the rest shows in what waits for it.
    took: Duration,
    times: u32,
}

/// Times are summed in memory that is there from the beginning: recording asks for none, so that what a step takes
/// and what the process has resident are the same with it.
pub struct Timeline {
    /// By instruction, section after section.
    moments: Vec<Moment>,
    /// By section: where its moments begin.
    begins: Vec<usize>,
    /// By section: whether its passes are recorded now.
    wanted: Vec<bool>,
    /// What steps and evaluations have waited for the copies of their batches, while they were recorded.
    waited_for_batches: Duration,
}

impl Timeline {
    /// Wants start-up alone at first.
    pub fn of_start(program: &Program) -> Timeline {
        let lengths = program.sections.iter().map(|section| section.code.len());
        let begins = lengths.scan(0, |end, length| Some(std::mem::replace(end, *end + length))).collect();
        let instructions = program.sections.iter().map(|section| section.code.len()).sum();
        // Not zeros at first, which the system would hand out without making them resident.
        let mut moments = vec![Moment { times: 1, ..Moment::default() }; instructions];
        moments.fill(std::hint::black_box(Moment::default()));
        let wanted = program.sections.iter().map(|section| section.kind == SectionKind::Start).collect();
        Timeline { moments, begins, wanted, waited_for_batches: Duration::ZERO }
    }

    /// Wants every pass of every section but start-up.
    pub(super) fn want_steps(&mut self, program: &Program) {
        let steps = program.sections.iter().map(|section| section.kind != SectionKind::Start);
        self.wanted.iter_mut().zip(steps).for_each(|(wanted, step)| *wanted = step);
    }

    /// Whether this pass of a section is recorded.
    pub(super) fn wants(&self, section: usize) -> bool {
        self.wanted[section]
    }

    /// Once more, an instruction was carried out.
    pub(super) fn record(&mut self, section: usize, instruction: usize, live: ByRole) {
        let moment = &mut self.moments[self.begins[section] + instruction];
        moment.live = live;
        moment.times += 1;
    }

    /// It took this long.
    pub(super) fn add(&mut self, section: usize, instruction: usize, took: Duration) {
        self.moments[self.begins[section] + instruction].took += took;
    }

    /// A batch that did not come ahead took this long.
    pub(super) fn add_wait_for_batch(&mut self, took: Duration) {
        // What steps are recorded, evaluations are.
        if self.wanted.last().is_some_and(|wanted| *wanted) {
            self.waited_for_batches += took;
        }
    }

    /// What queues that compute have waited for copies: until those were done that they need, and by the device's own clock
    /// (`clocked`) until they were enqueued, which for pageable memory of the host is until the driver has read or written it.
    pub(super) fn waited(&self, program: &Program, clocked: bool) -> Duration {
        let sections = program.sections.iter().zip(&self.begins);
        let moments = sections.flat_map(|(section, begin)| section.code.iter().zip(&self.moments[*begin..]));
        let code = program.sections.iter().flat_map(|section| &section.code);
        let copied: HashSet<Event> = code
            .filter_map(|instruction| match instruction.action {
                Action::Record { queue: Queue::Copy, event } => Some(event),
                _ => None,
            })
            .collect();
        let waits = moments.filter(|(instruction, _)| match &instruction.action {
            Action::Wait { queue: Queue::Compute | Queue::Host, event } => copied.contains(event),
            Action::Copy { queue: Queue::Copy, .. } => clocked,
            _ => false,
        });
        waits.map(|(_, moment)| moment.took).sum::<Duration>() + self.waited_for_batches
    }

    /// `memory.csv`: one line for each instruction that does something, and did. Time, FLOPs and bytes moved are those
    /// of one time; `times_per_step` says how often it is done in an optimizer step, which start-up and evaluation are
    /// no part of.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, program: &Program, file: &Path) -> io::Result<()> {
        let mut csv = csv::Writer::from_path(file)?;
        csv.write_record(header())?;
        for (section, begin) in program.sections.iter().zip(&self.begins) {
            let per_step = if section.kind.is_in_step() { section.repeat_count } else { 0 };
            for (instruction, moment) in section.code.iter().zip(&self.moments[*begin..]) {
                let Some((operation, value)) = describe(program, instruction) else { continue };
                if moment.times == 0 {
                    continue;
                }
                let mut record = vec![
                    section.kind.name().to_owned(),
                    instruction.phase.name().to_owned(),
                    program.scope(instruction.scope).path.clone(),
                    operation,
                    value,
                    format!("{:.5}", moment.took.as_secs_f64() * 1e3 / f64::from(moment.times)),
                    // What is done once, in the first step, is part of none.
                    if instruction.first_iteration { 0 } else { per_step }.to_string(),
                    program.flops(&instruction.action).to_string(),
                    moved_bytes(program, &instruction.action).to_string(),
                    moment.live.total().to_string(),
                ];
                record.extend(moment.live.iter().map(|(_, bytes)| bytes.to_string()));
                csv.write_record(&record)?;
            }
        }
        csv.flush()
    }
}

fn header() -> Vec<String> {
    const FIXED: [&str; 10] = [
        "section",
        "phase",
        "scope",
        "operation",
        "value",
        "ms",
        "times_per_step",
        "flops",
        "moved_bytes",
        "live_bytes",
    ];
    FIXED.into_iter().map(str::to_owned).chain(Role::ALL.map(Role::column)).collect()
}

/// What an instruction does and to which value; `None` for what takes no time.
fn describe(program: &Program, instruction: &Instruction) -> Option<(String, String)> {
    let named = |operation: &str, value| Some((operation.to_owned(), program.full_name(value)));
    match &instruction.action {
        Action::Launch { op, outputs, .. } if instruction.recompute => {
            named(&format!("{} again", op.name()), outputs[0])
        }
        Action::Launch { op, outputs, .. } => named(op.name(), outputs[0]),
        Action::Copy { to, .. } => named("copy", *to),
        Action::Allocate(storage) => named("allocate", *storage),
        Action::Free(storage) => named("free", *storage),
        Action::Leak(storage) => named("leak", *storage),
        Action::EmptyCache => Some(("empty cache".to_owned(), String::new())),
        Action::Wait { .. } => Some(("wait".to_owned(), String::new())),
        Action::Record { .. } => None,
    }
}

/// Read and written, at the least.
fn moved_bytes(program: &Program, action: &Action) -> u64 {
    match action {
        Action::Launch { op, inputs, outputs, .. } => {
            op.bytes(&program.types(inputs), &program.types(outputs))
        }
        Action::Copy { to, .. } => 2 * program.ty(*to).bytes(),
        _ => 0,
    }
}
