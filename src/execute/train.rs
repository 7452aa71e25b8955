//! Trains one run in its own process: reads the run's folder and returns the measured figures.

use std::iter;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use super::child::{Message, Reporter};
use super::engine::{Engine, Evaluated, Unchanged};
use super::error::{RunError, Stop, cannot_write};
use super::loader::{BatchSource, LoadedBatch, Loader};
use super::logs::{EvaluationLog, StepLog, TimedStep, Timeline};
use super::metrics::conditions::{clock_mhz, load};
use super::metrics::instruction_set;
use super::metrics::{
    self, Contention, Counts, EffectsContext, Ended, ExternalCounter, Loading, Measured, Outcome, StepTimes,
    Volume,
};
use super::prepare::{MatmulAlgorithmSources, Prepared, prime, products};
use compile::Program;
use data::{DigestCache, Sample, Source, StoredParameters};
use device::{Device, DeviceKind, Factors, Pool, Rank, RankGroup};
use memory::{Failure, RunSchedule, predict};
use spec::{Precision, RunConfig};

/// The file in a run's folder with its timeline: a line for each instruction.
pub const MEMORY_FILE: &str = "memory.csv";

/// One of several ranks: its index, and how it finds the others.
#[derive(Clone, Copy, Debug)]
pub struct RankPlace<'a> {
    pub index: usize,
    /// The file of the shared memory.
    pub memory: &'a Path,
    /// How long it waits for the others.
    pub patience: Duration,
}

/// Executes the run of a folder, or a rank's part of it. Only the first rank writes files. The folder holds `run.toml`, `target.toml`, [`DATA_FILE`] and, for a repeat, the
/// matmul algorithms of the first run ([`PRODUCTS_FILE`](super::PRODUCTS_FILE)). The run adds [`STEPS_FILE`],
/// [`MEMORY_FILE`] and its matmul algorithms. `began` is the start of the process, `ordinal` selects one of several
/// CUDA devices. With `rates`, the peak rates of the device are measured after the run.
///
/// # Errors
/// A file that cannot be read or written, or a device that fails. Running out of memory is a result.
pub fn run(
    folder: &Path,
    digests: &mut DigestCache,
    reporter: &mut Reporter,
    began: Instant,
    ordinal: usize,
    rates: bool,
    rank: Option<RankPlace<'_>>,
) -> Result<Outcome, RunError> {
    let prepared = Prepared::read(folder, digests, rank.map_or(0, |rank| rank.index))?;
    let mut device = open(&prepared, ordinal, rank)?;
    run_on(device.as_mut(), folder, prepared, reporter, began, rates)
}

/// Opens the device of a run, or of its rank.
pub(super) fn open(
    run: &Prepared,
    ordinal: usize,
    place: Option<RankPlace<'_>>,
) -> Result<Box<dyn Device>, RunError> {
    let Some(RankPlace { index, memory, patience }) = place else {
        return Ok(device::open_card(&run.target, ordinal)?);
    };
    let rank = run.config.rank(index);
    let group = RankGroup::join(memory, rank, patience).map_err(RunError::NoGroup)?;
    Ok(device::open_rank(&run.target.of_rank(rank.of), ordinal, group)?)
}

/// As [`run`], on an open device.
pub(super) fn run_on(
    device: &mut dyn Device,
    folder: &Path,
    prepared: Prepared,
    reporter: &mut Reporter,
    began: Instant,
    rates: bool,
) -> Result<Outcome, RunError> {
    let Prepared { config, target, sample, data, weights, program, compiled_in } = prepared;
    let run_schedule = RunSchedule::of(&config);
    reporter.send(&Message::Started { device: target.name.clone(), steps: run_schedule.steps });
    reporter.send(&Message::Phase { name: "choosing algorithms".to_owned() });
    let preparing = Instant::now();
    let products = products::choose(folder, &program, device, config.rank(target.rank))?;
    prime(device, &program, run_schedule)?;
    // Startup time excludes the timing of matmul algorithms (only the first run with a shape does it), priming (which
    // only the external reading needs) and compilation.
    let began = began + preparing.elapsed() + compiled_in;

    let precision = config.strategy.precision;
    let factors = Factors {
        dtype: precision.dtype(),
        tf32: precision == Precision::Tf32 && target.kind == DeviceKind::Cuda,
    };
    let emulated = !device.multiplies(precision.dtype());
    let trainer = Trainer {
        folder,
        config: &config,
        rank: config.rank(target.rank),
        run_schedule,
        sample: &sample,
        program: &program,
        data: &*data,
        weights: weights.as_ref(),
        products,
        reporter,
        began,
    };
    let instruction_set = instruction_set::of(device)?;
    let mut outcome = trainer.run(device)?;
    let measured = &mut outcome.measured;
    measured.emulated = emulated;
    measured.instruction_set = instruction_set;
    if let Some(products) = products {
        measured.record_products(products);
    }
    if rates && outcome.ended != Ended::OutOfMemory {
        reporter.send(&Message::Phase { name: "measuring the device".to_owned() });
        // Training is over and has its result: a failure here only leaves the rates unknown.
        let rates = device::measure_rates(device, factors).unwrap_or_default();
        measured.product_flops_per_s = rates.product_flops_per_s;
        measured.copy_bytes_per_s = rates.copy_bytes_per_s;
    }
    Ok(outcome)
}

/// The files that are written during training. The first rank writes them.
#[derive(Default)]
struct Logs {
    steps: Option<StepLog>,
    /// `None` without evaluations.
    evaluations: Option<EvaluationLog>,
}

impl Logs {
    fn create(folder: &Path, run_schedule: RunSchedule, rank: Rank) -> Result<Logs, RunError> {
        if rank.index > 0 {
            return Ok(Logs::default());
        }
        let evaluations = run_schedule.evaluations.map(|_| EvaluationLog::create(folder)).transpose()?;
        Ok(Logs { steps: Some(StepLog::create(folder)?), evaluations })
    }
}

struct Trainer<'a> {
    folder: &'a Path,
    config: &'a RunConfig,
    rank: Rank,
    run_schedule: RunSchedule,
    sample: &'a Sample,
    program: &'a Program,
    data: &'a dyn Source,
    weights: Option<&'a StoredParameters>,
    products: Option<MatmulAlgorithmSources>,
    reporter: &'a mut Reporter,
    began: Instant,
}

impl Trainer<'_> {
    fn run(self, device: &mut dyn Device) -> Result<Outcome, RunError> {
        let held = OnceLock::new();
        let source = BatchSource::new(self.config, self.rank, self.data, &held);
        thread::scope(|scope| {
            let loader = Loader::start(scope, source)?;
            self.run_on_batches(device, loader)
        })
    }

    fn run_on_batches(mut self, device: &mut dyn Device, mut loader: Loader) -> Result<Outcome, RunError> {
        let (mut outcome, mut times) = (Outcome::default(), StepTimes::default());
        let mut logs = Logs::create(self.folder, self.run_schedule, self.rank)?;
        // The process's own memory must be resident before the external counter begins.
        let timeline = Timeline::recording_start(self.program);
        outcome.measured.process_bytes = metrics::high_water_mark();
        let counter = ExternalCounter::begin(device);
        let built = Instant::now();
        let mut steps = 0;
        let ended = match Engine::new(self.program, device, false) {
            Ok(mut engine) => {
                engine.set_weights(self.weights);
                engine.record_timeline(timeline);
                let trained =
                    self.train(&mut engine, built, &mut loader, &mut logs, &mut times, &mut outcome);
                steps = engine.counts().steps;
                let measured = &mut outcome.measured;
                measured.record_memory(engine.ledger());
                let reading = counter.and_then(|counter| counter.read(engine.device()));
                measured.external_peak_bytes = reading.map(|reading| reading.peak);
                measured.external_step_bytes = reading.and_then(|reading| reading.step);
                trained.and_then(|trained| self.finish(engine, trained, loader, &mut outcome))
            }
            Err(failure) => Err(failure.into()),
        };
        match ended {
            Ok(()) => {}
            Err(Stop::OutOfMemory(found)) => {
                let target = device.target();
                let short = predict(self.program, target, self.run_schedule).short(target);
                outcome.set_out_of_memory(&found, short, steps);
            }
            Err(Stop::Error(error)) => return Err(error),
        }
        outcome.measured.record_speed(&times, self.config.train.batch_size);
        Ok(outcome)
    }

    fn train(
        &mut self,
        engine: &mut Engine,
        built: Instant,
        loader: &mut Loader,
        logs: &mut Logs,
        times: &mut StepTimes,
        outcome: &mut Outcome,
    ) -> Result<Trained, Stop> {
        self.reporter.send(&Message::Phase { name: "start".to_owned() });
        engine.start()?;
        loader.attach(engine)?;
        let warmup_steps = self.config.measure.warmup_steps;
        let before = engine.counts();
        outcome.measured.startup_ms = Some(milliseconds(self.began.elapsed()));
        let (mut step, mut loss_scale) = (0, None);
        let mut padding: Option<[u64; 2]> = None;
        let mut contention: Option<Contention> = None;
        let mut unchanged = Unchanged::new(self.program);
        let cycles = self.run_schedule.cycles().flat_map(|(times, cycle)| iter::repeat_n(cycle, times));
        for cycle in cycles {
            for _ in 0..cycle.steps {
                if step == warmup_steps {
                    (outcome.measured.load, outcome.measured.clock_mhz) = (load(), clock_mhz());
                    contention = Contention::now();
                    // The device's own clock would slow down the timed steps.
                    if !engine.has_clock() {
                        engine.record_steps().map_err(Failure::from)?;
                    }
                }
                let (timed, loaded) = self.step(engine, step, loader)?;
                let volume = self.volume(step);
                if let Some([masked, positions]) = loader.padding(loaded) {
                    // Positions behind a shorter micro-batch are neither read nor counted.
                    let shorter = volume.tokens.filter(|_| self.config.lengths.is_some());
                    let tokens = shorter.map_or(positions, |tokens| tokens as u64);
                    let [all_padded, all] = padding.unwrap_or_default();
                    padding = Some([all_padded + tokens + masked - positions, all + tokens]);
                }
                let first_step_ms = &mut outcome.measured.first_step_ms;
                first_step_ms.get_or_insert_with(|| milliseconds(built.elapsed()));
                let usage = engine.ledger().usage(Pool::Device);
                let counted = step >= warmup_steps;
                step += 1;
                let memory = (usage.live.total(), usage.step_peak());
                if let Some(log) = &mut logs.steps {
                    log.step(step, &timed, volume, memory.0)?;
                }
                self.report_step(step, &timed, volume, counted, memory);
                if counted {
                    times.step_ms.push(timed.ms);
                    times.step_tokens.extend(volume.tokens);
                    times.data_wait_ms.push(timed.data_wait_ms);
                    times.loading_ms.extend(loaded.took.map(milliseconds));
                }
                record_loss(outcome, timed.loss);
                loss_scale = timed.loss_scale;
                if step == 1 {
                    unchanged.record_first_step(engine)?;
                }
            }
            if cycle.evaluation_batches > 0 {
                let evaluated = self.evaluate(engine, step, cycle.evaluation_batches, loader, outcome)?;
                if let Some(evaluations) = &mut logs.evaluations {
                    evaluations.evaluation(step, evaluated)?;
                }
            }
        }
        let (after, measured) = (engine.counts(), &mut outcome.measured);
        measured.padding = padding.map(|[padded, tokens]| padded as f64 / tokens as f64);
        // The processors' other work is that of the other ranks.
        measured.cpu_wait = contention
            .filter(|_| self.rank.of == 1)
            .and_then(|before| before.share_since(engine.device().target().threads));
        measured.clock_after_mhz = measured.clock_mhz.and_then(|_| clock_mhz());
        let steps = step.max(1) as u64;
        measured.record_counts(&before, &after, steps);
        if self.rank.of > 1 {
            measured.sent_bytes = Some((after.sent_bytes - before.sent_bytes) / steps);
            // With its own clock, the device records one more step only.
            if !engine.has_clock() {
                measured
                    .record_exchanges(engine.exchanges().map_err(Failure::from)?, self.config.measure.steps);
            }
        }
        if let Some(scale) = loss_scale {
            measured.skipped_steps = Some(after.skipped_steps - before.skipped_steps);
            measured.loss_scale = Some(f64::from(scale));
        }
        // The share is reported only for a complete run.
        if outcome.ended == Ended::Complete {
            measured.unchanged_parameters = unchanged.share_since_first_step(engine, steps)?;
        }
        measured.digest = engine.digest()?;
        let stages_batches = !self.program.host_buffers.staged.is_empty();
        let ahead = (after.batches_ahead - before.batches_ahead) as f64 / steps as f64;
        measured.batches_ahead = stages_batches.then_some(ahead);
        let loading = loader.loading(times);
        measured.loading_hidden = loading.and_then(|loading| loading.hidden);
        Ok(Trained { before, after, loading })
    }

    /// Fills in the effects and writes the timeline. With a device clock, it first records one more step. Memory has
    /// been read before: that step is not part of the predicted run schedule, and running out of memory in it does not
    /// change the result.
    fn finish(
        &mut self,
        mut engine: Engine,
        trained: Trained,
        mut loader: Loader,
        outcome: &mut Outcome,
    ) -> Result<(), Stop> {
        let profiled =
            if engine.has_clock() { self.profile(&mut engine, &mut loader).map(Some) } else { Ok(None) };
        match profiled {
            Ok(ms) => {
                outcome.measured.profiled_step_ms = ms;
                outcome.measured.copies_hidden = trained.copies_hidden(&mut engine)?;
                if engine.has_clock() && self.rank.of > 1 {
                    outcome.measured.record_exchanges(engine.exchanges().map_err(Failure::from)?, 1);
                }
            }
            Err(Stop::OutOfMemory(_) | Stop::Error(RunError::Refused { .. })) => {
                outcome.set_no_timeline();
                outcome.measured.effects = self.effects(&trained, &outcome.measured);
                return Ok(());
            }
            Err(stop) => return Err(stop),
        }
        outcome.measured.effects = self.effects(&trained, &outcome.measured);
        if let Some(timeline) = engine.take_timeline().filter(|_| self.rank.index == 0) {
            let file = self.folder.join(MEMORY_FILE);
            timeline.write(self.program, &file).map_err(|error| cannot_write(&file, error))?;
        }
        Ok(engine.close()?)
    }

    fn effects(&self, trained: &Trained, measured: &Measured) -> String {
        let Measured { copies_hidden, exchange_hidden, padding, .. } = measured;
        let Trained { loading, .. } = *trained;
        let run = EffectsContext {
            copies_hidden: *copies_hidden,
            exchange_hidden: *exchange_hidden,
            padding: *padding,
            loading,
            ..EffectsContext::new(self.config, self.program)
        };
        metrics::effects(&trained.before, &trained.after, run, self.products)
    }

    /// A whole optimizer step: wait for the batch, forward, backward, update, read the loss.
    fn step(
        &self,
        engine: &mut Engine,
        step: usize,
        loader: &mut Loader,
    ) -> Result<(TimedStep, LoadedBatch), Stop> {
        let began = Instant::now();
        let loaded = loader.next()?;
        let waited = began.elapsed();
        let taken = step + 1 - engine.counts().skipped_steps as usize;
        let report = engine.step_on(loaded.slot, loaded.next, &self.config.numbers(taken))?;
        let took = began.elapsed();
        let timed = TimedStep {
            loss: report.loss,
            gradient_norm: report.gradient_norm,
            loss_scale: report.loss_scale,
            ms: milliseconds(took),
            data_wait_ms: milliseconds(waited),
            learning_rate: self.config.trains().then(|| self.config.learning_rate(taken)),
        };
        Ok((timed, loaded))
    }

    /// One more step, and one evaluation batch if the run evaluates, for the timeline only. Returns the step's
    /// milliseconds.
    fn profile(&mut self, engine: &mut Engine, loader: &mut Loader) -> Result<f64, Stop> {
        self.reporter.send(&Message::Phase { name: "profile".to_owned() });
        engine.record_steps()?;
        let (step, _) = self.step(engine, self.run_schedule.steps, loader)?;
        if self.run_schedule.evaluations.is_some() {
            engine.evaluate_on(loader.evaluation(0, 1)?.slot)?;
            engine.finish_evaluation()?;
        }
        Ok(step.ms)
    }

    /// The mean loss and accuracy over the first `batches` batches of the evaluation split. The samples do not depend on
    /// micro-batches.
    fn evaluate(
        &mut self,
        engine: &mut Engine,
        step: usize,
        batches: usize,
        loader: &mut Loader,
        outcome: &mut Outcome,
    ) -> Result<Evaluated, Stop> {
        self.reporter.send(&Message::Phase { name: "evaluation".to_owned() });
        let mut sums = Evaluated::default();
        for index in 0..batches {
            sums += engine.evaluate_on(loader.evaluation(index, batches)?.slot)?;
        }
        engine.finish_evaluation()?;
        let sums = engine.over_ranks(sums)?;
        let samples = self.config.evaluation_batch().unwrap_or(self.config.train.batch_size);
        let mean = sums.times(1.0 / (batches as f64 * samples as f64));
        let finite = Some(mean.loss).filter(|loss| loss.is_finite());
        outcome.measured.loss_eval = finite;
        outcome.measured.accuracy = mean.accuracy;
        if finite.is_none() {
            outcome.set_diverged();
        }
        self.reporter.send(&Message::Evaluation { step, loss: finite });
        Ok(mean)
    }

    /// Of a step, counted from 0.
    fn volume(&self, step: usize) -> Volume {
        Volume::of_step(self.config, self.sample, step)
    }

    fn report_step(
        &mut self,
        step: usize,
        done: &TimedStep,
        volume: Volume,
        timed: bool,
        (live_bytes, peak_bytes): (u64, u64),
    ) {
        self.reporter.send(&Message::Step {
            step,
            steps: self.run_schedule.steps,
            timed,
            loss: finite(done.loss),
            samples_per_s: volume.samples_per_s(done.ms),
            tokens_per_s: volume.tokens_per_s(done.ms),
            live_bytes,
            peak_bytes,
        });
    }
}

/// Counts before the first step and after the last.
struct Trained {
    before: Counts,
    after: Counts,
    /// How its batches were loaded, if the strategy sets the loader.
    loading: Option<Loading>,
}

impl Trained {
    /// The share of the recorded copy time that was hidden. `None` if nothing was copied, or if steps replay graphs:
    /// the recorded step, which is timed by instruction, does not.
    fn copies_hidden(&self, engine: &mut Engine) -> Result<Option<f64>, Failure> {
        let Trained { before, after, .. } = self;
        let moves =
            after.bytes_to_host > before.bytes_to_host || after.bytes_to_device > before.bytes_to_device;
        if moves && after.replays == 0 { Ok(engine.copies_hidden()?) } else { Ok(None) }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(super) fn finite(number: f32) -> Option<f64> {
    number.is_finite().then_some(f64::from(number))
}

fn record_loss(outcome: &mut Outcome, loss: f32) {
    if !loss.is_finite() {
        outcome.set_diverged();
    }
    let measured = &mut outcome.measured;
    measured.loss_first = measured.loss_first.or(finite(loss));
    measured.loss_last = finite(loss);
}
