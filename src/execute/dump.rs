//! A run trained again, with everything written down that repeating and judging it elsewhere takes: what it starts
//! from, its batches, its gradients, what it ends with. It is no measurement: reading all that takes time and memory
//! between the halves of a step.

use std::io;
use std::path::Path;
use std::time::Instant;

use super::engine::{Batch, Engine};
use super::measurement::{Ended, Measurement};
use super::tensor_file::TensorFile;
use super::train::{self, Prepared, RunError, STEPS_FILE, StepLog, Stop, TimedStep};
use super::{Message, Reporter, products};
use crate::device::{self, Device, Pool};
use crate::ops::TensorType;

/// Parameters before the first step, by name.
const INITIAL_FILE: &str = "initial.safetensors";

/// `tokens` and `targets`, i32[steps, B, T] each, warm-up included.
const BATCHES_FILE: &str = "batches.safetensors";

/// Gradients of the first and the last step, `<step>.<parameter>` with steps counted from 1: complete over all
/// micro-batches, not clipped.
const GRADIENTS_FILE: &str = "gradients.safetensors";

/// Parameters after the last step, by name.
const FINAL_FILE: &str = "final.safetensors";

/// What a dump leaves beside the files that describe its run.
pub const DUMP_FILES: [&str; 5] = [INITIAL_FILE, BATCHES_FILE, GRADIENTS_FILE, FINAL_FILE, STEPS_FILE];

/// Trains the run whose `run.toml`, `target.toml` and [`DATA_FILE`](super::DATA_FILE) lie in the folder, with the algorithms
/// of its [`PRODUCTS_FILE`](super::PRODUCTS_FILE), and leaves [`DUMP_FILES`] there. Evaluations, which change nothing, are
/// left out. Of the measurement, how it ended, the digest and where the algorithms came from are filled in. Of several
/// cards, it runs on that of the ordinal.
///
/// # Errors
/// What cannot be read or written, or a device that fails. Running out of memory is a result.
pub fn dump(folder: &Path, reporter: &mut Reporter, ordinal: usize) -> Result<Measurement, RunError> {
    let run = Prepared::read(folder)?;
    let mut device = device::open_card(&run.target, ordinal)?;
    let steps = run.config.measure.warmup_steps + run.config.measure.steps;
    reporter.send(&Message::Started { device: run.target.name.clone(), steps });
    let products = products::choose(folder, &run.program, device.as_mut())?;
    let mut measurement = Measurement { products, ..Measurement::default() };
    let mut dump = Dump { folder, run: &run, steps, reporter };
    match dump.write(device.as_mut(), &mut measurement) {
        Ok(()) => {}
        Err(Stop::OutOfMemory(found)) => train::report_out_of_memory(&mut measurement, &found),
        Err(Stop::Error(error)) => return Err(error),
    }
    Ok(measurement)
}

struct Dump<'a> {
    folder: &'a Path,
    run: &'a Prepared,
    steps: usize,
    reporter: &'a mut Reporter,
}

impl Dump<'_> {
    fn write(&mut self, device: &mut dyn Device, measurement: &mut Measurement) -> Result<(), Stop> {
        self.batches()?;
        let mut engine = Engine::new(&self.run.program, device, false)?;
        engine.start()?;
        self.parameters(&mut engine, INITIAL_FILE)?;
        self.train(&mut engine, measurement)?;
        self.parameters(&mut engine, FINAL_FILE)?;
        measurement.digest = engine.digest()?;
        Ok(engine.close()?)
    }

    fn train(&mut self, engine: &mut Engine, measurement: &mut Measurement) -> Result<(), Stop> {
        let tokens = self.run.config.train.batch_size * train::context(&self.run.config);
        let mut log = StepLog::create(&self.folder.join(STEPS_FILE))?;
        let mut gradients = self.create(GRADIENTS_FILE, &self.gradient_tensors())?;
        let mut batch = self.empty_batch();
        for step in 1..=self.steps {
            let kept = self.kept_steps().contains(&step).then_some(&mut gradients);
            let done = self.step(engine, step, &mut batch, kept)?;
            let usage = engine.ledger().usage(Pool::Device);
            let (live, peak_bytes) = (usage.live.total(), usage.step_peak());
            log.step(step, &done, tokens, live)?;
            if !done.loss.is_finite() {
                measurement.ended = Ended::Diverged;
            }
            self.reporter.send(&Message::Step {
                step,
                steps: self.steps,
                timed: false,
                loss: train::finite(done.loss),
                tokens_per_s: Some(tokens as f64 / done.ms * 1e3),
                peak_bytes,
            });
        }
        self.written(GRADIENTS_FILE, gradients.finish())
    }

    /// Step `step`, counted from 1, as a run takes it, with a look at the gradients in its middle that is not timed.
    fn step(
        &self,
        engine: &mut Engine,
        step: usize,
        batch: &mut Batch,
        kept: Option<&mut TensorFile>,
    ) -> Result<TimedStep, Stop> {
        let config = &self.run.config;
        let began = Instant::now();
        train::training_batch(config, &self.run.data, step - 1, batch);
        let waited = began.elapsed();
        let taken = step - engine.counts().skipped_steps as usize;
        engine.gradients(batch, config.train.optimizer.control(taken))?;
        engine.synchronize()?;
        let until_gradients = began.elapsed();

        // Where the program clips or scales, it has a norm of its own, which is the one that counts.
        let needs_norm = config.train.clip_norm.is_none() && config.strategy.loss_scale.is_none();
        let looks = needs_norm || kept.is_some();
        let norm = if looks { Some(self.look_at_gradients(engine, kept)?) } else { None };

        let began = Instant::now();
        let report = engine.update()?;
        let took = until_gradients + began.elapsed();
        Ok(TimedStep {
            loss: report.loss,
            gradient_norm: report.gradient_norm.or(norm),
            loss_scale: config.strategy.loss_scale.map(|_| engine.loss_scale()),
            ms: took.as_secs_f64() * 1e3,
            data_wait_ms: waited.as_secs_f64() * 1e3,
        })
    }

    /// Writes all gradients down if they are kept, without their scale. Returns the norm of all of them, summed in
    /// f64.
    fn look_at_gradients(&self, engine: &mut Engine, mut kept: Option<&mut TensorFile>) -> Result<f32, Stop> {
        let mut squares = 0.0;
        let scale = engine.loss_scale();
        let mut unscaled = Vec::new();
        for parameter in &self.run.program.parameters {
            let gradient = parameter.gradient.expect("compilation differentiates by every parameter");
            engine.read(gradient, |piece| -> Result<(), Stop> {
                let (numbers, _) = piece.as_chunks();
                let numbers = numbers.iter().map(|bytes| f32::from_ne_bytes(*bytes) / scale);
                unscaled.clear();
                unscaled.extend(numbers.clone().flat_map(f32::to_ne_bytes));
                squares += numbers.map(|number| f64::from(number).powi(2)).sum::<f64>();
                match &mut kept {
                    Some(file) => self.written(GRADIENTS_FILE, file.write(&unscaled)),
                    None => Ok(()),
                }
            })?;
        }
        Ok(squares.sqrt() as f32)
    }

    /// All parameters as they are now.
    fn parameters(&self, engine: &mut Engine, name: &str) -> Result<(), Stop> {
        let mut file = self.create(name, &self.parameter_tensors())?;
        for parameter in &self.run.program.parameters {
            engine.read(parameter.value, |piece| -> Result<(), Stop> {
                self.written(name, file.write(piece))
            })?;
        }
        self.written(name, file.finish())
    }

    /// All batches, which are drawn again for the targets rather than kept.
    fn batches(&self) -> Result<(), Stop> {
        let train = &self.run.config.train;
        let ty = TensorType::i32(&[self.steps, train.batch_size, train::context(&self.run.config)]);
        let tensors = ["tokens", "targets"].map(|name| (name.to_owned(), ty));
        let mut file = self.create(BATCHES_FILE, &tensors)?;
        let mut batch = self.empty_batch();
        for tensor in 0..tensors.len() {
            for step in 0..self.steps {
                train::training_batch(&self.run.config, &self.run.data, step, &mut batch);
                let numbers = [&batch.tokens, &batch.targets][tensor];
                let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
                self.written(BATCHES_FILE, file.write(&bytes))?;
            }
        }
        self.written(BATCHES_FILE, file.finish())
    }

    fn empty_batch(&self) -> Batch {
        let numbers = self.run.config.train.batch_size * train::context(&self.run.config);
        Batch { tokens: vec![0; numbers], targets: vec![0; numbers] }
    }

    fn parameter_tensors(&self) -> Vec<(String, TensorType)> {
        let program = &self.run.program;
        let tensor = |id| (program.full_name(id), program.ty(id));
        program.parameters.iter().map(|parameter| tensor(parameter.value)).collect()
    }

    fn gradient_tensors(&self) -> Vec<(String, TensorType)> {
        let parameters = self.parameter_tensors();
        let of = |step: usize| parameters.iter().map(move |(name, ty)| (format!("{step}.{name}"), *ty));
        self.kept_steps().into_iter().flat_map(of).collect()
    }

    /// The steps whose gradients are kept, counted from 1: the first and the last, which may be one.
    fn kept_steps(&self) -> Vec<usize> {
        let mut steps = vec![1, self.steps];
        steps.dedup();
        steps
    }

    fn create(&self, name: &str, tensors: &[(String, TensorType)]) -> Result<TensorFile, Stop> {
        let path = self.folder.join(name);
        Ok(TensorFile::create(&path, tensors).map_err(|error| train::cannot_write(&path, error))?)
    }

    fn written(&self, name: &str, result: io::Result<()>) -> Result<(), Stop> {
        Ok(result.map_err(|error| train::cannot_write(&self.folder.join(name), error))?)
    }
}
