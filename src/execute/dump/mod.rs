//! Repeats a run and writes the tensors needed to reproduce and check it elsewhere: initial parameters, batches,
//! gradients, final parameters. A dump is not a measurement: reading the tensors takes time and memory between the
//! halves of a step.

mod checkpoint;
pub(crate) mod tensor_file;

use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use self::tensor_file::{TensorFile, TensorHeader};
use crate::child::{Message, Reporter};
use crate::engine::Engine;
use crate::error::{RunError, Stop, cannot_write};
use crate::loader::BatchSource;
use crate::logs::{STEPS_FILE, StepLog, TimedStep};
use crate::metrics::{Outcome, Volume, instruction_set};
use crate::prepare::{Prepared, products};
use crate::train::{RankPlace, finite, open};
use data::{Batch, DigestCache, Part};
use device::{Device, Pool, Rank, to_f32};
use memory::{RunSchedule, predict};
use ops::{DType, ValueId};
use spec::{RunConfig, Update};

/// Parameters before the first step, by name.
const INITIAL_FILE: &str = "initial.safetensors";

/// The parts of all batches, each [steps, B, ..], warm-up included.
const BATCHES_FILE: &str = "batches.safetensors";

/// Gradients of the first and the last step, `<step>.<parameter>` with steps counted from 1: complete over all
/// micro-batches, not clipped.
const GRADIENTS_FILE: &str = "gradients.safetensors";

/// Parameters after the last step, by name.
const FINAL_FILE: &str = "final.safetensors";

/// What is written of a run that is trained once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpContents {
    /// What another program needs to repeat the training and to compare it.
    Tensors,
    /// The final parameters, as Hugging Face's libraries read them.
    Checkpoint,
}

impl DumpContents {
    /// The option of `sweep` that requests it.
    pub fn option(self) -> &'static str {
        match self {
            DumpContents::Tensors => "--dump",
            DumpContents::Checkpoint => "--save",
        }
    }

    /// The files that it adds to the run's folder.
    pub fn files(self, config: &RunConfig) -> Vec<&'static str> {
        match self {
            DumpContents::Tensors => {
                vec![INITIAL_FILE, BATCHES_FILE, GRADIENTS_FILE, FINAL_FILE, STEPS_FILE]
            }
            DumpContents::Checkpoint => checkpoint::files(config).to_vec(),
        }
    }

    /// Why a run cannot be written.
    pub fn missing(self, config: &RunConfig) -> Option<&'static str> {
        if self == DumpContents::Tensors {
            (config.shards_states() && config.trains())
                .then_some("no rank has the sums of all gradients (parallel.shard)")
        } else if config.shards_parameters() {
            Some("no rank has the whole model (parallel.shard)")
        } else if !config.trains() {
            Some("the run trains nothing")
        } else if checkpoint::configuration(config).is_none() {
            Some("no model family of the library transformers has this architecture")
        } else if config.strategy.lora.is_some() && config.model.weights().is_none() {
            Some("its base is randomly initialized; factors need the `weights` that they belong to")
        } else {
            checkpoint::untransferable(config)
        }
    }
}

/// Trains the run of a folder, which holds `run.toml`, `target.toml`, [`DATA_FILE`](crate::DATA_FILE) and the matmul
/// algorithms in [`PRODUCTS_FILE`](crate::PRODUCTS_FILE), and writes the files of `contents` there. Evaluations are skipped:
/// they change nothing. The outcome contains only how the run ended, its digest and the sources of the matmul
/// algorithms. `ordinal` selects one of several CUDA devices. Of several ranks, the first writes the files.
///
/// # Errors
/// A file that cannot be read or written, or a device that fails. Running out of memory is a result.
pub fn dump(
    folder: &Path,
    digests: &mut DigestCache,
    reporter: &mut Reporter,
    ordinal: usize,
    rank: Option<RankPlace<'_>>,
    contents: DumpContents,
) -> Result<Outcome, RunError> {
    let run = Prepared::read(folder, digests, rank.map_or(0, |rank| rank.index))?;
    let mut device = open(&run, ordinal, rank)?;
    let steps = RunSchedule::of(&run.config).steps;
    reporter.send(&Message::Started { device: run.target.name.clone(), steps });
    let own = run.config.rank(run.target.rank);
    let products = products::choose(folder, &run.program, device.as_mut(), own)?;
    let mut outcome = Outcome::default();
    if let Some(products) = products {
        outcome.measured.record_products(products);
    }
    let held = OnceLock::new();
    let rank = run.config.rank(run.target.rank);
    let source = BatchSource::new(&run.config, rank, &*run.data, &held);
    let mut dump = Dump { folder, run: &run, rank, contents, source, steps, done: 0, reporter };
    match dump.write(device.as_mut(), &mut outcome) {
        Ok(()) => {}
        Err(Stop::OutOfMemory(found)) => {
            let prediction = predict(&run.program, &run.target, RunSchedule::of(&run.config));
            outcome.set_out_of_memory(&found, prediction.short(&run.target), dump.done);
        }
        Err(Stop::Error(error)) => return Err(error),
    }
    Ok(outcome)
}

struct Dump<'a> {
    folder: &'a Path,
    run: &'a Prepared,
    rank: Rank,
    contents: DumpContents,
    source: BatchSource<'a>,
    steps: usize,
    /// Completed steps.
    done: u64,
    reporter: &'a mut Reporter,
}

impl Dump<'_> {
    fn write(&mut self, device: &mut dyn Device, outcome: &mut Outcome) -> Result<(), Stop> {
        let is_checkpoint = self.contents == DumpContents::Checkpoint;
        let (is_first, is_checkpoint) = (self.rank.index == 0, is_checkpoint || self.rank.index > 0);
        if !is_checkpoint {
            self.batches()?;
        }
        outcome.measured.instruction_set = instruction_set::of(device)?;
        let mut engine = Engine::new(&self.run.program, device, false)?;
        engine.set_weights(self.run.weights.as_ref());
        if !is_checkpoint && self.run.config.strategy.update == Update::InBackward {
            engine.keep_applied_gradients();
        }
        engine.start()?;
        self.source.hold(&mut engine)?;
        engine.run_lazy_init()?;
        if is_checkpoint {
            self.train(&mut engine, outcome, None)?;
            if is_first {
                checkpoint::write(self.folder, self.run, &mut engine)?;
            }
        } else {
            self.parameters(&mut engine, INITIAL_FILE)?;
            let mut gradients = self.create(GRADIENTS_FILE, &self.gradient_tensors())?;
            self.train(&mut engine, outcome, Some(&mut gradients))?;
            self.check_written(GRADIENTS_FILE, gradients.finish())?;
            self.parameters(&mut engine, FINAL_FILE)?;
        }
        outcome.measured.digest = engine.digest()?;
        Ok(engine.close()?)
    }

    /// Trains, and writes the gradients of some steps to a file.
    fn train(
        &mut self,
        engine: &mut Engine,
        outcome: &mut Outcome,
        mut gradients: Option<&mut TensorFile>,
    ) -> Result<(), Stop> {
        let is_first = self.rank.index == 0;
        let mut log = is_first.then(|| StepLog::create(self.folder)).transpose()?;
        let mut batch = self.empty_batch();
        for step in 1..=self.steps {
            let kept = gradients.as_deref_mut().filter(|_| self.kept_steps().contains(&step));
            let done = self.step(engine, step, &mut batch, kept)?;
            self.done = step as u64;
            let volume = Volume::of_step(&self.run.config, &self.run.sample, step - 1);
            let usage = engine.ledger().usage(Pool::Device);
            let (live_bytes, peak_bytes) = (usage.live.total(), usage.step_peak());
            if let Some(log) = &mut log {
                log.step(step, &done, volume, live_bytes)?;
            }
            if !done.loss.is_finite() {
                outcome.set_diverged();
            }
            self.reporter.send(&Message::Step {
                step,
                steps: self.steps,
                timed: false,
                loss: finite(done.loss),
                samples_per_s: volume.samples_per_s(done.ms),
                tokens_per_s: volume.tokens_per_s(done.ms),
                live_bytes,
                peak_bytes,
            });
        }
        Ok(())
    }

    /// Step `step`, counted from 1, as in a run. Reading the gradients between its halves is not timed.
    fn step(
        &self,
        engine: &mut Engine,
        step: usize,
        batch: &mut Batch,
        kept: Option<&mut TensorFile>,
    ) -> Result<TimedStep, Stop> {
        let config = &self.run.config;
        let began = Instant::now();
        self.source.training(step - 1, self.source.samples(), batch).map_err(RunError::from)?;
        let waited = began.elapsed();
        let taken = step - engine.counts().skipped_steps as usize;
        engine.gradients(batch, &config.numbers(taken))?;
        engine.synchronize()?;
        let until_gradients = began.elapsed();

        // The program's own gradient norm takes precedence, if it has one.
        let has_norm = self.run.program.host_buffers.results.norm.is_some();
        let reads_norm = self.contents == DumpContents::Tensors && !has_norm && self.rank.index == 0;
        let reads = self.run.program.trains() && (reads_norm || kept.is_some());
        let norm = if reads { Some(self.read_gradients(engine, kept)?) } else { None };

        let began = Instant::now();
        let report = engine.update()?;
        let took = until_gradients + began.elapsed();
        Ok(TimedStep {
            loss: report.loss,
            gradient_norm: report.gradient_norm.or(norm),
            loss_scale: report.loss_scale,
            ms: took.as_secs_f64() * 1e3,
            data_wait_ms: waited.as_secs_f64() * 1e3,
            learning_rate: config.trains().then(|| config.learning_rate(taken)),
        })
    }

    /// Writes all gradients in f32, without the loss scale, if there is a file. Returns their norm, summed in f64.
    fn read_gradients(&self, engine: &mut Engine, mut kept: Option<&mut TensorFile>) -> Result<f32, Stop> {
        let mut squares = 0.0;
        let scale = engine.loss_scale()?.unwrap_or(1.0);
        let mut unscaled = Vec::new();
        for parameter in &self.run.program.parameters {
            let Some(gradient) = parameter.gradient else { continue };
            let dtype = self.run.program.ty(gradient).dtype;
            engine.gradient(gradient, |piece| -> Result<(), Stop> {
                let mut numbers = to_f32(dtype, piece);
                numbers.iter_mut().for_each(|number| *number /= scale);
                unscaled.clear();
                unscaled.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
                squares += numbers.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>();
                match &mut kept {
                    Some(file) => self.check_written(GRADIENTS_FILE, file.write(&unscaled)),
                    None => Ok(()),
                }
            })?;
        }
        Ok(squares.sqrt() as f32)
    }

    /// Writes the current parameters; quantized ones as codes and scales.
    fn parameters(&self, engine: &mut Engine, name: &str) -> Result<(), Stop> {
        let program = &self.run.program;
        let stored = program
            .parameters
            .iter()
            .flat_map(|parameter| std::iter::once(parameter.value).chain(parameter.scales.iter().copied()));
        let stored: Vec<ValueId> = stored.collect();
        let tensor = |&id: &ValueId| TensorHeader::new(program.full_name(id), program.ty(id));
        let mut file = self.create(name, &stored.iter().map(tensor).collect::<Vec<_>>())?;
        for id in stored {
            engine.read(id, |piece| -> Result<(), Stop> { self.check_written(name, file.write(piece)) })?;
        }
        self.check_written(name, file.finish())
    }

    /// Writes all batches. They are read again for each part, to avoid keeping them in memory.
    fn batches(&self) -> Result<(), Stop> {
        let batch_size = self.run.config.train.batch_size;
        let tensor = |part: &Part| {
            let ty = part.of_samples(batch_size);
            let dims = [&[self.steps], ty.shape.dims()].concat();
            TensorHeader { name: part.name.to_owned(), dtype: ty.dtype, dims }
        };
        let mut batch = self.run.config.wide_batch(batch_size);
        let tensors: Vec<TensorHeader> = batch.all().map(|filled| tensor(&filled.part)).collect();
        let mut file = self.create(BATCHES_FILE, &tensors)?;
        for part in 0..tensors.len() {
            for step in 0..self.steps {
                self.source.training_from_data(step, &mut batch).map_err(RunError::from)?;
                let filled = batch.all().nth(part).expect("a batch has its parts");
                self.check_written(BATCHES_FILE, file.write(&filled.bytes))?;
            }
        }
        self.check_written(BATCHES_FILE, file.finish())
    }

    fn empty_batch(&self) -> Batch {
        self.run.config.empty_batch(self.rank.samples(self.run.config.train.batch_size).len())
    }

    fn gradient_tensors(&self) -> Vec<TensorHeader> {
        let program = &self.run.program;
        let trained = program.parameters.iter().filter(|parameter| parameter.gradient.is_some());
        let tensor = |id| TensorHeader {
            dtype: DType::F32,
            ..TensorHeader::new(program.full_name(id), program.ty(id))
        };
        let parameters: Vec<TensorHeader> = trained.map(|parameter| tensor(parameter.value)).collect();
        let named = |step: usize, entry: &TensorHeader| TensorHeader {
            name: format!("{step}.{}", entry.name),
            ..entry.clone()
        };
        let of = |step: usize| parameters.iter().map(move |entry| named(step, entry));
        self.kept_steps().into_iter().flat_map(of).collect()
    }

    /// The steps whose gradients are written, counted from 1: the first and the last, which may be the same.
    fn kept_steps(&self) -> Vec<usize> {
        let mut steps = vec![1, self.steps];
        steps.dedup();
        steps
    }

    fn create(&self, name: &str, tensors: &[TensorHeader]) -> Result<TensorFile, Stop> {
        let path = self.folder.join(name);
        Ok(TensorFile::create(&path, tensors).map_err(|error| cannot_write(&path, error))?)
    }

    fn check_written(&self, name: &str, result: io::Result<()>) -> Result<(), Stop> {
        Ok(result.map_err(|error| cannot_write(&self.folder.join(name), error))?)
    }
}
