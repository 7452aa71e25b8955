//! The timeline of a run: live memory after each instruction, and the instruction's time.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use compile::{Action, Instruction, Program, SectionKind, When};
use device::{ByRole, Event, Queue, Role};

/// The record of one instruction over all its executions.
#[derive(Clone, Copy, Default)]
struct InstructionRecord {
    /// Live bytes after the last execution.
    live: ByRole,
    /// Total time, by the device's clock if it has one and by the host's otherwise. On queues other than the compute
    /// queue, the time to enqueue; the rest shows in the instructions that wait for it.
    took: Duration,
    times: u32,
}

/// Records live memory and times. Its memory is allocated up front: recording allocates nothing, so that it changes
/// neither the resident set nor, measurably, the time of a step.
pub(crate) struct Timeline {
    /// By instruction, section after section.
    records: Vec<InstructionRecord>,
    /// By section: index of its first record.
    section_starts: Vec<usize>,
    /// By section: whether it is recorded now.
    recording: Vec<bool>,
    /// Recorded executions by section and length, if the lengths of samples vary.
    executions: BTreeMap<(usize, usize), u64>,
    /// Time that recorded steps and evaluations waited for the upload of their batches.
    waited_for_batches: Duration,
}

impl Timeline {
    /// A timeline that records only start-up at first.
    pub(crate) fn recording_start(program: &Program) -> Timeline {
        let lengths = program.sections.iter().map(|section| section.code.len());
        let section_starts =
            lengths.scan(0, |end, length| Some(std::mem::replace(end, *end + length))).collect();
        let instructions = program.sections.iter().map(|section| section.code.len()).sum();
        // Filled with non-zeros first: the system hands out zeroed pages without making them resident.
        let mut records = vec![InstructionRecord { times: 1, ..InstructionRecord::default() }; instructions];
        records.fill(std::hint::black_box(InstructionRecord::default()));
        let recording = program.sections.iter().map(|section| section.kind == SectionKind::Start).collect();
        let executions = BTreeMap::new();
        Timeline { records, section_starts, recording, executions, waited_for_batches: Duration::ZERO }
    }

    /// From now on, records every section except start-up.
    pub(crate) fn record_steps(&mut self, program: &Program) {
        let steps = program.sections.iter().map(|section| section.kind != SectionKind::Start);
        self.recording.iter_mut().zip(steps).for_each(|(recording, step)| *recording = step);
    }

    /// Whether a section is recorded now.
    pub(crate) fn is_recording(&self, section: usize) -> bool {
        self.recording[section]
    }

    /// Counts an execution of a section in a program of samples of one length.
    pub(crate) fn record_length(&mut self, section: usize, program: &Program) {
        if let Some(of) = program.lengths.as_ref().filter(|_| self.recording[section]) {
            *self.executions.entry((section, of.lengths.longest())).or_default() += 1;
        }
    }

    /// The mean of the recorded executions of an instruction's figure, which depends on the length of samples.
    fn mean(
        &self,
        program: &Program,
        (section, index): (usize, usize),
        figure: fn(&Program, &Action) -> u64,
    ) -> u64 {
        let of = |program: &Program| figure(program, &program.sections[section].code[index].action);
        let executions = self.executions.range((section, 0)..(section + 1, 0));
        let (mut total, mut times) = (0u128, 0);
        for (&(_, length), &executed) in executions {
            total += u128::from(of(program.at_length(length))) * u128::from(executed);
            times += u128::from(executed);
        }
        total.checked_div(times).map_or_else(|| of(program), |mean| mean as u64)
    }

    /// Records an execution of an instruction and the live bytes after it.
    pub(crate) fn record_live(&mut self, section: usize, instruction: usize, live: ByRole) {
        let record = &mut self.records[self.section_starts[section] + instruction];
        record.live = live;
        record.times += 1;
    }

    /// Adds to the time of an instruction.
    pub(crate) fn add_time(&mut self, section: usize, instruction: usize, took: Duration) {
        self.records[self.section_starts[section] + instruction].took += took;
    }

    /// Adds the upload time of a batch that was not prefetched.
    pub(crate) fn add_wait_for_batch(&mut self, took: Duration) {
        // Steps and evaluations are recorded together, so any section but start-up tells.
        if self.recording.last().is_some_and(|recording| *recording) {
            self.waited_for_batches += took;
        }
    }

    /// Time that computation waited for copies: waits of the compute and host queues for copies, and, with the device's
    /// own clock (`clocked`), the time to enqueue copies. With pageable host memory that lasts until the driver has
    /// read or written it.
    pub(crate) fn copy_wait(&self, program: &Program, clocked: bool) -> Duration {
        let enqueued = self.records(program).filter(|(instruction, _)| {
            clocked && matches!(instruction.action, Action::Copy { queue: Queue::Copy, .. })
        });
        let enqueued: Duration = enqueued.map(|(_, record)| record.took).sum();
        self.wait_for(Queue::Copy, program) + enqueued + self.waited_for_batches
    }

    /// Time that computation waited for exchanges with other ranks.
    pub(crate) fn exchange_wait(&self, program: &Program) -> Duration {
        self.wait_for(Queue::Communication, program)
    }

    /// The time of waits of the compute and host queues for another queue.
    fn wait_for(&self, queue: Queue, program: &Program) -> Duration {
        let code = program.sections.iter().flat_map(|section| &section.code);
        let recorded: HashSet<Event> = code
            .filter_map(|instruction| match instruction.action {
                Action::Record { queue: of, event } if of == queue => Some(event),
                _ => None,
            })
            .collect();
        let waits = self.records(program).filter(|(instruction, _)| match &instruction.action {
            Action::Wait { queue: Queue::Compute | Queue::Host, event } => recorded.contains(event),
            _ => false,
        });
        waits.map(|(_, record)| record.took).sum()
    }

    fn records<'a>(
        &'a self,
        program: &'a Program,
    ) -> impl Iterator<Item = (&'a Instruction, &'a InstructionRecord)> {
        let sections = program.sections.iter().zip(&self.section_starts);
        sections.flat_map(|(section, begin)| section.code.iter().zip(&self.records[*begin..]))
    }

    /// Writes `memory.csv`: one line for each executed instruction, without event records. `device` is `device` or
    /// `host`, where the instruction runs. Time, FLOPs and bytes moved are means of one execution; `times_per_step` is the number of executions in an optimizer step, 0 for start-up
    /// and evaluation.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn write(&self, program: &Program, file: &Path) -> io::Result<()> {
        let mut csv = csv::Writer::from_path(file)?;
        csv.write_record(header())?;
        for (number, (section, begin)) in program.sections.iter().zip(&self.section_starts).enumerate() {
            let per_step = if section.kind.is_in_step() { section.repeat_count } else { 0 };
            for (index, (instruction, record)) in section.code.iter().zip(&self.records[*begin..]).enumerate()
            {
                let Some((operation, value)) = describe(program, instruction) else { continue };
                if record.times == 0 {
                    continue;
                }
                let mut line = vec![
                    section.kind.name().to_owned(),
                    instruction.phase.name().to_owned(),
                    program.scope(instruction.scope).path.clone(),
                    operation,
                    value,
                    instruction.device.name().to_owned(),
                    format!("{:.5}", record.took.as_secs_f64() * 1e3 / f64::from(record.times)),
                    match instruction.when {
                        // Not part of a step.
                        When::Once => 0,
                        When::Last => per_step.min(1),
                        When::Always => per_step,
                    }
                    .to_string(),
                    self.mean(program, (number, index), Program::flops).to_string(),
                    self.mean(program, (number, index), moved_bytes).to_string(),
                    record.live.total().to_string(),
                ];
                line.extend(record.live.iter().map(|(_, bytes)| bytes.to_string()));
                csv.write_record(&line)?;
            }
        }
        csv.flush()
    }
}

fn header() -> Vec<String> {
    const FIXED: [&str; 11] = [
        "section",
        "phase",
        "scope",
        "operation",
        "value",
        "device",
        "ms",
        "times_per_step",
        "flops",
        "moved_bytes",
        "live_bytes",
    ];
    FIXED.into_iter().map(str::to_owned).chain(Role::ALL.map(Role::column)).collect()
}

/// Operation and value of an instruction. `None` for event records, which take no time.
fn describe(program: &Program, instruction: &Instruction) -> Option<(String, String)> {
    let named = |operation: &str, value| Some((operation.to_owned(), program.full_name(value)));
    match &instruction.action {
        Action::Launch { op, outputs, .. } if instruction.recompute => {
            named(&format!("{} again", op.name()), outputs[0])
        }
        Action::Launch { op, outputs, .. } => named(op.name(), outputs[0]),
        Action::Copy { to, .. } => named("copy", *to),
        Action::Exchange { collective, to, .. } => named(collective.name(), *to),
        Action::Allocate(storage) => named("allocate", *storage),
        Action::Free(storage) => named("free", *storage),
        Action::Leak(storage) => named("leak", *storage),
        Action::Collect { value, .. } => named("collect", *value),
        Action::EmptyCache => Some(("empty cache".to_owned(), String::new())),
        Action::Wait { .. } => Some(("wait".to_owned(), String::new())),
        Action::Record { .. } => None,
    }
}

/// Lower bound of the bytes read and written.
fn moved_bytes(program: &Program, action: &Action) -> u64 {
    match action {
        Action::Launch { op, inputs, outputs, .. } => {
            op.bytes(&program.types(inputs), &program.types(outputs))
        }
        Action::Copy { to, .. } => 2 * program.ty(*to).bytes(),
        _ => 0,
    }
}
