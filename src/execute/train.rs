//! One run in its own process: from a folder with its configuration to what it measured.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::engine::{Batch, Engine};
use super::measurement::{Ended, Measurement, OutOfMemoryReport, Roles};
use super::products::ProductSources;
use super::timeline::Timeline;
use super::witness::Witness;
use super::{Message, Reporter, prime, products, receipt};
use crate::compile::{Program, Violation, compile_verified};
use crate::data::{DataError, TextFiles};
use crate::device::{
    self, Device, DeviceError, DeviceKind, Factors, Ledger, Phase, Pool, Target, TargetError,
};
use crate::memory::{Failure, OutOfMemory};
use crate::plan;
use crate::spec::{self, Data, Model, Precision, RunConfig};

/// The file in a run's folder that holds the digest of the data that the run was planned with.
pub const DATA_FILE: &str = "data.digest";

/// The file in a run's folder with a line for each step.
pub const STEPS_FILE: &str = "steps.csv";

/// The file in a run's folder with its timeline: a line for each instruction.
pub const MEMORY_FILE: &str = "memory.csv";

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Spec(#[from] spec::Error),
    #[error("{0} does not hold exactly one run")]
    NotOneRun(String),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("the device failed: {0}")]
    Device(#[from] DeviceError),
    #[error("the data changed while the sweep ran; sweep again")]
    DataChanged,
    #[error("{file} is no table of products: {error}")]
    Products { file: String, error: csv::Error },
    #[error("cannot read {file}: {error}")]
    Read { file: String, error: io::Error },
    #[error("cannot write {file}: {error}")]
    Write { file: String, error: io::Error },
}

/// Executes the run whose `run.toml`, `target.toml` and [`DATA_FILE`] lie in the folder, and its choices where it repeats
/// another ([`PRODUCTS_FILE`](super::PRODUCTS_FILE)); leaves [`STEPS_FILE`], [`MEMORY_FILE`] and its choices there. The
/// process began at `began`. Of several cards, it runs on that of the ordinal.
///
/// # Errors
/// What cannot be read or written, or a device that fails. Running out of memory is a result.
pub fn run(
    folder: &Path,
    reporter: &mut Reporter,
    began: Instant,
    ordinal: usize,
) -> Result<Measurement, RunError> {
    let Prepared { config, target, data, program } = Prepared::read(folder)?;
    let mut device = device::open_card(&target, ordinal)?;
    let steps = config.measure.warmup_steps + config.measure.steps;
    reporter.send(&Message::Started { device: target.name.clone(), steps });
    prime::prime(device.as_mut(), &config.strategy)?;
    reporter.send(&Message::Phase { name: "choosing algorithms".to_owned() });
    let choosing = Instant::now();
    let products = products::choose(folder, &program, device.as_mut())?;
    // What the first run with a shape times for all others is no part of how it starts.
    let began = began + choosing.elapsed();

    let precision = config.strategy.precision;
    let factors = Factors {
        number: precision.dtype(),
        tf32: precision == Precision::Tf32 && target.kind == DeviceKind::Cuda,
    };
    let emulated = !device.multiplies(precision.dtype());
    let trainer =
        Trainer { folder, config: &config, program: &program, data: &data, products, reporter, began };
    let mut measurement = trainer.run(device.as_mut())?;
    measurement.emulated = emulated;
    measurement.products = products;
    if measurement.ended != Ended::OutOfMemory {
        reporter.send(&Message::Phase { name: "measuring the device".to_owned() });
        // Training is over and has its result, whatever the device does now: what it does not tell is unknown.
        let rates = device::measure_rates(device.as_mut(), factors).unwrap_or_default();
        measurement.product_flops_per_s = rates.product_flops_per_s;
        measurement.copy_bytes_per_s = rates.copy_bytes_per_s;
    }
    Ok(measurement)
}

/// A run, ready to be trained.
pub(super) struct Prepared {
    pub(super) config: RunConfig,
    pub(super) target: Target,
    pub(super) data: TextFiles,
    pub(super) program: Program,
}

impl Prepared {
    pub(super) fn read(folder: &Path) -> Result<Prepared, RunError> {
        let config = load_run(&folder.join("run.toml"))?;
        let target = Target::read(&folder.join("target.toml"))?;
        let Data::Text(text) = &config.data;
        let data = TextFiles::open(&text.paths, text.split)?;
        check_unchanged(&data, &folder.join(DATA_FILE))?;
        data.splits().check(context(&config), config.evaluation.is_some())?;
        let program = compile_verified(&config, &target)?;
        Ok(Prepared { config, target, data, program })
    }
}

/// The one run of a resolved configuration.
fn load_run(file: &Path) -> Result<RunConfig, RunError> {
    let experiment = plan::expand(file, &[], &|_| None)?;
    let not_one = || RunError::NotOneRun(file.display().to_string());
    let [point] = <[plan::Point; 1]>::try_from(experiment.points).map_err(|_| not_one())?;
    point.config.map_err(|_| not_one())
}

/// The run's name promises the data that it was planned with: others would be cached under it.
fn check_unchanged(data: &TextFiles, file: &Path) -> Result<(), RunError> {
    let planned = std::fs::read_to_string(file)
        .map_err(|error| RunError::Read { file: file.display().to_string(), error })?;
    if planned.trim() == data.digest() { Ok(()) } else { Err(RunError::DataChanged) }
}

/// Positions in a sequence.
pub(super) fn context(config: &RunConfig) -> usize {
    let Model::Transformer(model) = &config.model;
    model.context
}

/// The batch of a step, counted from 0.
pub(super) fn training_batch(config: &RunConfig, data: &TextFiles, step: usize, batch: &mut Batch) {
    let train = &config.train;
    let (samples, context) = (0..train.batch_size as u64, context(config));
    let Batch { tokens, targets } = batch;
    data.training_batch(train.seed, step as u64, samples, context, tokens, targets);
}

struct Trainer<'a> {
    folder: &'a Path,
    config: &'a RunConfig,
    program: &'a Program,
    data: &'a TextFiles,
    products: Option<ProductSources>,
    reporter: &'a mut Reporter,
    began: Instant,
}

impl Trainer<'_> {
    fn run(mut self, device: &mut dyn Device) -> Result<Measurement, RunError> {
        let mut measurement = Measurement { tokens_per_step: Some(self.tokens()), ..Measurement::default() };
        let mut log = StepLog::create(&self.folder.join(STEPS_FILE))?;
        // What the process needs beside the run's memory is resident before the witness begins.
        let timeline = Timeline::of_start(self.program);
        let batches = [self.config.train.batch_size, self.config.micro_batch()].map(|b| self.empty_batch(b));
        let witness = Witness::begin(device);
        let ended = match Engine::new(self.program, device, false) {
            Ok(mut engine) => {
                let ended = self.train(&mut engine, timeline, batches, &mut log, &mut measurement);
                report_memory(&mut measurement, engine.ledger());
                let testimony = witness.and_then(|witness| witness.testimony(engine.device()));
                measurement.witness_peak_bytes = testimony.map(|testimony| testimony.peak);
                measurement.witness_step_bytes = testimony.and_then(|testimony| testimony.step);
                ended.and_then(|()| Ok(engine.close()?))
            }
            Err(failure) => Err(failure.into()),
        };
        match ended {
            Ok(()) => {}
            Err(Stop::OutOfMemory(found)) => report_out_of_memory(&mut measurement, &found),
            Err(Stop::Error(error)) => return Err(error),
        }
        Ok(measurement)
    }

    fn train(
        &mut self,
        engine: &mut Engine,
        timeline: Timeline,
        [mut batch, mut evaluated]: [Batch; 2],
        log: &mut StepLog,
        measurement: &mut Measurement,
    ) -> Result<(), Stop> {
        self.reporter.send(&Message::Phase { name: "start".to_owned() });
        engine.record_timeline(timeline);
        engine.start()?;
        let measure = &self.config.measure;
        let total = measure.warmup_steps + measure.steps;
        let before = engine.counts();
        measurement.startup_ms = Some(milliseconds(self.began.elapsed()));
        for step in 0..total {
            if step == measure.warmup_steps {
                (measurement.load, measurement.clock_mhz) = (load(), clock_mhz());
                // The device's own clock takes time that steps are not to be charged with.
                if !engine.has_clock() {
                    engine.record_steps();
                }
            }
            let timed = self.step(engine, step, &mut batch)?;
            let usage = engine.ledger().usage(Pool::Device);
            let counted = step >= measure.warmup_steps;
            log.step(step + 1, &timed, self.tokens(), usage.live.total())?;
            self.report_step(step + 1, total, &timed, counted, usage.step_peak());
            record_step(measurement, &timed, counted);
            if self.evaluates_after(step + 1, total) {
                self.evaluate(engine, step + 1, &mut evaluated, measurement)?;
            }
        }
        let after = engine.counts();
        measurement.receipt = receipt::receipt(&before, &after, self.products);
        let steps = total.max(1) as u64;
        measurement.recompute_flops = Some((after.recompute_flops - before.recompute_flops) / steps);
        measurement.hardware_flops = Some((after.flops - before.flops) / steps);
        if self.config.strategy.loss_scale.is_some() {
            measurement.skipped_steps = Some(after.skipped_steps - before.skipped_steps);
            measurement.loss_scale = Some(f64::from(engine.loss_scale()));
        }
        measurement.micro_batches = Some((after.micro_batches - before.micro_batches) / steps);
        measurement.digest = engine.digest()?;
        if engine.has_clock() {
            measurement.profiled_step_ms = Some(self.profile(engine, total, [&mut batch, &mut evaluated])?);
        }
        if let Some(timeline) = engine.take_timeline() {
            let file = self.folder.join(MEMORY_FILE);
            timeline.write(self.program, &file).map_err(|error| cannot_write(&file, error))?;
        }
        Ok(())
    }

    /// A whole optimizer step: the batch made and brought, forward, backward, update, the loss read back.
    fn step(&self, engine: &mut Engine, step: usize, batch: &mut Batch) -> Result<TimedStep, Failure> {
        let began = Instant::now();
        training_batch(self.config, self.data, step, batch);
        let waited = began.elapsed();
        let taken = step + 1 - engine.counts().skipped_steps as usize;
        let report = engine.step(batch, self.config.train.optimizer.control(taken))?;
        let took = began.elapsed();
        Ok(TimedStep {
            loss: report.loss,
            gradient_norm: report.gradient_norm,
            loss_scale: self.config.strategy.loss_scale.map(|_| engine.loss_scale()),
            ms: milliseconds(took),
            data_wait_ms: milliseconds(waited),
        })
    }

    /// One more step, and an evaluation if there are any, for the timeline alone. Returns what the step took.
    fn profile(
        &mut self,
        engine: &mut Engine,
        steps: usize,
        [batch, evaluated]: [&mut Batch; 2],
    ) -> Result<f64, Stop> {
        self.reporter.send(&Message::Phase { name: "profile".to_owned() });
        engine.record_steps();
        let step = self.step(engine, steps, batch)?;
        if self.config.evaluation.is_some() {
            self.evaluation_batch(0, evaluated);
            engine.evaluate(evaluated)?;
        }
        Ok(step.ms)
    }

    fn evaluates_after(&self, step: usize, total: usize) -> bool {
        let evaluation = self.config.evaluation.as_ref();
        evaluation.is_some_and(|evaluation| step == total || step.is_multiple_of(evaluation.every))
    }

    /// The mean loss over the first batches of the evaluation split, a micro-batch at a time: always the same
    /// samples, however a batch is split.
    fn evaluate(
        &mut self,
        engine: &mut Engine,
        step: usize,
        batch: &mut Batch,
        measurement: &mut Measurement,
    ) -> Result<(), Stop> {
        self.reporter.send(&Message::Phase { name: "evaluation".to_owned() });
        let batches = self.config.evaluation.as_ref().map_or(0, |evaluation| evaluation.batches);
        let batches = batches * self.config.strategy.accumulate;
        let mut sum = 0.0;
        for index in 0..batches {
            self.evaluation_batch(index, batch);
            sum += f64::from(engine.evaluate(batch)?);
        }
        let loss = sum / batches as f64;
        measurement.loss_eval = Some(loss).filter(|loss| loss.is_finite());
        if !loss.is_finite() {
            measurement.ended = Ended::Diverged;
        }
        self.reporter.send(&Message::Evaluation { step, loss: measurement.loss_eval });
        Ok(())
    }

    /// A micro-batch of the evaluation split.
    fn evaluation_batch(&self, index: usize, batch: &mut Batch) {
        let Batch { tokens, targets } = batch;
        self.data.evaluation_batch(index as u64, context(self.config), tokens, targets);
    }

    fn empty_batch(&self, samples: usize) -> Batch {
        let numbers = samples * context(self.config);
        // Not zeros, which the system would hand out without making them resident.
        Batch { tokens: vec![1; numbers], targets: vec![1; numbers] }
    }

    /// Per optimizer step.
    fn tokens(&self) -> usize {
        self.config.train.batch_size * context(self.config)
    }

    fn report_step(&mut self, step: usize, steps: usize, done: &TimedStep, timed: bool, peak_bytes: u64) {
        self.reporter.send(&Message::Step {
            step,
            steps,
            timed,
            loss: finite(done.loss),
            tokens_per_s: Some(self.tokens() as f64 / done.ms * 1e3),
            peak_bytes,
        });
    }
}

/// One optimizer step, done.
pub(super) struct TimedStep {
    pub(super) loss: f32,
    pub(super) gradient_norm: Option<f32>,
    /// For the next step.
    pub(super) loss_scale: Option<f32>,
    pub(super) ms: f64,
    pub(super) data_wait_ms: f64,
}

/// What ends training early.
pub(super) enum Stop {
    OutOfMemory(Box<OutOfMemory>),
    Error(RunError),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        match failure {
            Failure::OutOfMemory(found) => Stop::OutOfMemory(found),
            Failure::Device(error) => Stop::Error(error.into()),
        }
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Stop {
        Stop::Error(error)
    }
}

pub(super) fn cannot_write(file: &Path, error: io::Error) -> RunError {
    RunError::Write { file: file.display().to_string(), error }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(super) fn finite(number: f32) -> Option<f64> {
    number.is_finite().then_some(f64::from(number))
}

fn record_step(measurement: &mut Measurement, done: &TimedStep, timed: bool) {
    if timed {
        measurement.step_ms.push(done.ms);
        measurement.data_wait_ms.push(done.data_wait_ms);
    }
    if !done.loss.is_finite() {
        measurement.ended = Ended::Diverged;
    }
    measurement.loss_first = measurement.loss_first.or(finite(done.loss));
    measurement.loss_last = finite(done.loss);
}

fn report_memory(measurement: &mut Measurement, ledger: &Ledger) {
    let (device, host) = (ledger.usage(Pool::Device), ledger.usage(Pool::Host));
    let peak = device.steady_peak().live;
    let phase = |phase| Some(device.phase_peak(phase).live.total()).filter(|bytes| *bytes > 0);
    measurement.peak_bytes = Some(peak.total());
    measurement.roles = Roles::of(&peak);
    measurement.reserved_peak_bytes = Some(device.reserved_peak);
    measurement.start_peak_bytes = phase(Phase::Start);
    measurement.forward_peak_bytes = phase(Phase::Forward);
    measurement.backward_peak_bytes = phase(Phase::Backward);
    measurement.update_peak_bytes = phase(Phase::Update);
    measurement.evaluation_peak_bytes = phase(Phase::Evaluation);
    let all_host = Phase::ALL.iter().map(|&phase| host.phase_peak(phase).live.total());
    measurement.host_peak_bytes = all_host.max();
    measurement.host_reserved_peak_bytes = Some(host.reserved_peak);
}

pub(super) fn report_out_of_memory(measurement: &mut Measurement, found: &OutOfMemory) {
    measurement.ended = Ended::OutOfMemory;
    measurement.peak_bytes = Some(found.live.total());
    measurement.roles = Roles::of(&found.live);
    measurement.out_of_memory = Some(OutOfMemoryReport {
        phase: found.phase.name().to_owned(),
        operation: found.operation.clone(),
        value: found.value.clone(),
        requested: found.requested,
        short: found.short,
    });
}

/// `steps.csv`, written between steps.
pub(super) struct StepLog {
    file: File,
    name: String,
}

impl StepLog {
    pub(super) fn create(path: &Path) -> Result<StepLog, RunError> {
        let file = File::create(path).map_err(|error| cannot_write(path, error))?;
        let mut log = StepLog { file, name: path.display().to_string() };
        log.line("step,loss,grad_norm,ms,tokens_per_s,live_bytes,data_wait_ms,loss_scale\n")?;
        Ok(log)
    }

    pub(super) fn step(
        &mut self,
        step: usize,
        done: &TimedStep,
        tokens: usize,
        live: u64,
    ) -> Result<(), RunError> {
        let known = |number: Option<f32>| number.map_or(String::new(), |number| number.to_string());
        let (norm, scale) = (known(done.gradient_norm), known(done.loss_scale));
        let rate = tokens as f64 / done.ms * 1e3;
        let TimedStep { loss, ms, data_wait_ms, .. } = done;
        self.line(&format!("{step},{loss},{norm},{ms:.3},{rate:.1},{live},{data_wait_ms:.3},{scale}\n"))
    }

    fn line(&mut self, line: &str) -> Result<(), RunError> {
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|error| RunError::Write { file: self.name.clone(), error })
    }
}

/// One-minute load average.
fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The fastest core's clock now.
fn clock_mhz() -> Option<f64> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let clocks = info.lines().filter(|line| line.starts_with("cpu MHz"));
    let clocks = clocks.filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
    clocks.max_by(f64::total_cmp)
}
