//! The step that is taken for the timeline alone, once training is over.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::Reporter;
use super::super::measured::{Ended, Outcome};
use super::super::prepared::Prepared;
use super::super::train::{MEMORY_FILE, run_on};
use compile::{Action, Section};
use device::{Buffer, Device, DeviceError, Event, Pool, Queue};
use spec::*;
use testing::compile;
use testing::forward;

/// By its clock, what each instruction of the step for the timeline takes, and all copies of it.
const LAP: Duration = Duration::from_millis(1);
const COPIED: Duration = Duration::from_secs(4);

/// A device with a clock, which others leave without memory once its clock is read in a step.
struct Crowded {
    device: Box<dyn Device>,
    started: bool,
    profiling: bool,
    crowded: bool,
    /// Since the clock was last read.
    laps: usize,
}

impl Device for Crowded {
    forward!(target, free, copy, launch, lend, record, wait, synchronize, poison, write, read);

    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        if self.crowded && self.profiling {
            return Err(DeviceError::OutOfMemory { pool, bytes });
        }
        self.device.allocate(pool, bytes)
    }

    fn has_clock(&self) -> bool {
        true
    }

    /// Start-up is timed, and then nothing before the step for the timeline.
    fn lap(&mut self) -> Result<(), DeviceError> {
        self.profiling = self.started;
        self.laps += 1;
        Ok(())
    }

    fn laps(&mut self) -> Result<Vec<Duration>, DeviceError> {
        self.started = true;
        Ok(vec![LAP; std::mem::take(&mut self.laps).saturating_sub(1)])
    }

    fn copied(&mut self) -> Result<Option<Duration>, DeviceError> {
        Ok(Some(if self.profiling { COPIED } else { Duration::ZERO }))
    }
}

fn outcome(folder: &Path, crowded: bool) -> Outcome {
    let mut config = testing::small();
    config.strategy.allocator = Allocator::Direct;
    outcome_of(folder, crowded, config)
}

fn outcome_of(folder: &Path, crowded: bool, mut config: RunConfig) -> Outcome {
    let text = folder.join("text.txt");
    std::fs::write(&text, "What is learnt from is not what this is about. ".repeat(20)).unwrap();
    config.data = Data::Text(Text::new(vec![text], 0.9));
    let target = testing::target();
    let prepared = Prepared {
        weights: None,
        sample: config.sample(),
        data: config.data.data_set().open(&config.sample(), &mut data::DigestCache::default()).unwrap(),
        program: compile(&config, &target).unwrap(),
        compiled_in: std::time::Duration::ZERO,
        target: target.clone(),
        config,
    };
    let device = testing::device(target);
    let mut device = Crowded { device, started: false, profiling: false, crowded, laps: 0 };
    run_on(&mut device, folder, prepared, &mut Reporter::new(std::io::sink()), Instant::now(), true).unwrap()
}

#[test]
fn a_timeline_that_gets_no_memory_costs_the_timeline_alone() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [calm, crowded] = [(0, false), (1, true)].map(|(at, crowded)| outcome(folders[at].path(), crowded));
    assert_eq!([calm.ended, crowded.ended], [Ended::Complete; 2]);
    let figures = |outcome: &Outcome| {
        let measured = &outcome.measured;
        (measured.peak_bytes, measured.live, measured.digest.clone(), measured.loss_last)
    };
    assert_eq!(figures(&calm), figures(&crowded));

    let has_timeline = folders.map(|folder| folder.path().join(MEMORY_FILE).exists());
    assert_eq!(has_timeline, [true, false]);
    assert!(calm.measured.profiled_step_ms.is_some() && crowded.measured.profiled_step_ms.is_none());
    assert_eq!(calm.message, "");
    assert_eq!(crowded.message, "no times of operations: the step that is taken for them got no memory");
}

/// Nothing is computed while the compute queue stands waiting for a copy, or for one to be enqueued.
#[test]
fn copies_are_hidden_but_for_what_the_device_s_queue_waits_for() {
    let mut config = testing::small();
    config.strategy.offload = Offload { parameters: true, optimizer: true, ..Offload::default() };
    let program = compile(&config, &testing::target()).unwrap();
    let copied: HashSet<Event> = program
        .sections
        .iter()
        .flat_map(|section| &section.code)
        .filter_map(|instruction| match instruction.action {
            Action::Record { queue: Queue::Copy, event } => Some(event),
            _ => None,
        })
        .collect();
    let waits = |section: &Section| {
        let waits = section.code.iter().filter(|instruction| match instruction.action {
            Action::Wait { queue, event } => queue != Queue::Copy && copied.contains(&event),
            Action::Copy { queue, .. } => queue == Queue::Copy,
            _ => false,
        });
        section.repeat_count * waits.count()
    };
    let waited: usize = program.step().chain(program.evaluation()).map(waits).sum();
    let expected = 1.0 - LAP.as_secs_f64() * waited as f64 / COPIED.as_secs_f64();
    assert!(waited > 0 && expected > 0.0, "{waited} waits");

    let folder = tempfile::tempdir().unwrap();
    let outcome = outcome_of(folder.path(), false, config);
    let hidden = outcome.measured.copies_hidden.unwrap();
    assert!((hidden - expected).abs() < 1e-9, "{hidden}, not {expected}");
    let told = format!("{:.0}% of copies hidden", 100.0 * expected);
    assert!(outcome.measured.effects.contains(&told), "{}", outcome.measured.effects);
}

/// Nothing is copied but batches: there is nothing to hide.
#[test]
fn nothing_is_said_of_copies_where_no_strategy_copies() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(outcome(folder.path(), false).measured.copies_hidden, None);
}
