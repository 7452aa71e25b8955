//! The profiled step, which is run after training for the timeline only.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::child::Reporter;
use crate::metrics::{Ended, Outcome};
use crate::prepare::Prepared;
use crate::train::{MEMORY_FILE, run_on};
use compile::{Action, Section};
use device::{Buffer, Device, DeviceError, Event, Pool, Queue};
use spec::*;
use testing::compile;
use testing::forward;

/// Time of each instruction of the profiled step, and of all its copies, by the device's clock.
const LAP: Duration = Duration::from_millis(1);
const COPIED: Duration = Duration::from_secs(4);

/// A device with a clock. If crowded, it is out of memory in the profiled step.
struct Crowded {
    device: Box<dyn Device>,
    started: bool,
    profiling: bool,
    crowded: bool,
    /// Laps since the clock was last read.
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

    /// Start-up is timed, and after it only the profiled step.
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
fn profiled_step_out_of_memory_loses_only_the_timeline() {
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
    assert_eq!(crowded.message, "no times of operations: the profiled step ran out of memory");
}

/// Copies are not hidden while the compute queue waits for one, or for one to be enqueued.
#[test]
fn hidden_copy_time_excludes_waits_of_the_compute_queue() {
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

/// Batches alone do not count.
#[test]
fn copies_hidden_is_empty_without_copies_of_a_strategy() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(outcome(folder.path(), false).measured.copies_hidden, None);
}
