//! The step that is taken for the timeline alone, once training is over.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::Reporter;
use super::super::measured::{Ended, Outcome};
use super::super::prepared::Prepared;
use super::super::train::{MEMORY_FILE, run_on};
use crate::compile::compile;
use crate::device::{Buffer, Device, DeviceError, Event, Pool, Queue, Region, Target, Tensor};
use crate::ops::Op;
use crate::spec::*;
use crate::testing;

/// A device with a clock, which others leave without memory once its clock is read in a step.
struct Crowded {
    device: Box<dyn Device>,
    started: bool,
    profiling: bool,
    crowded: bool,
}

impl Device for Crowded {
    fn target(&self) -> &Target {
        self.device.target()
    }

    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        if self.crowded && self.profiling {
            return Err(DeviceError::OutOfMemory { pool, bytes });
        }
        self.device.allocate(pool, bytes)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.device.free(buffer)
    }

    fn copy(&mut self, queue: Queue, from: Region, to: Region) -> Result<(), DeviceError> {
        self.device.copy(queue, from, to)
    }

    fn launch(
        &mut self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: Option<Region>,
    ) -> Result<(), DeviceError> {
        self.device.launch(op, inputs, outputs, workspace)
    }

    fn record(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        self.device.record(queue, event)
    }

    fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        self.device.wait(queue, event)
    }

    fn has_clock(&self) -> bool {
        true
    }

    /// Start-up is timed, and then nothing before the step for the timeline.
    fn lap(&mut self) -> Result<(), DeviceError> {
        self.profiling = self.started;
        Ok(())
    }

    fn laps(&mut self) -> Result<Vec<Duration>, DeviceError> {
        self.started = true;
        Ok(Vec::new())
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.device.synchronize()
    }

    fn poison(&mut self, region: Region) -> Result<(), DeviceError> {
        self.device.poison(region)
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write(region, bytes)
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(region, bytes)
    }
}

fn outcome(folder: &Path, crowded: bool) -> Outcome {
    let text = folder.join("text.txt");
    std::fs::write(&text, "What is learnt from is not what this is about. ".repeat(20)).unwrap();
    let mut config = testing::small();
    config.strategy.allocator = Allocator::Direct;
    config.data = Data::Text(Text { paths: vec![text], tokens: Tokens::Bytes, split: 0.9 });
    let target = testing::target();
    let prepared = Prepared {
        weights: None,
        sample: config.model.sample(),
        data: config.data.data_set().open().unwrap(),
        program: compile(&config, &target).unwrap(),
        target: target.clone(),
        config,
    };
    let device = testing::device(target);
    let mut device = Crowded { device, started: false, profiling: false, crowded };
    run_on(&mut device, folder, prepared, &mut Reporter::new(std::io::sink()), Instant::now()).unwrap()
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
