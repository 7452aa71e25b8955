//! Assembles batches in the host buffers that the device copies them from: within the step, or ahead of it in worker
//! threads.
//!
//! Each worker fills a share of the samples of every batch. A sample is a pure function of seed, step and index, so the
//! number of workers and the prefetch depth do not change a batch.

mod batch_source;

pub(crate) use batch_source::BatchSource;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::RunError;
use crate::metrics::{Loading, StepTimes};
use data::{Batch, DataError, Memory, Part};
use device::DeviceError;

/// A complete batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedBatch {
    /// Its slot in the host buffers.
    pub(crate) slot: usize,
    /// The slot of the next step's batch, if that is complete, too.
    pub(crate) next: Option<usize>,
    /// The time of the slowest worker for its share. `None` without workers.
    pub(crate) took: Option<Duration>,
}

/// A share of a batch, to be filled by a worker.
struct Job {
    step: usize,
    batch: Batch,
    /// Whether the worker adds `loader.delay` for each sample.
    delays: bool,
}

/// A filled share of a batch.
struct FilledShare {
    batch: Batch,
    took: Duration,
}

/// A slot of the host buffers: the memory of one batch.
#[derive(Default)]
struct Slot {
    /// The batch's shares in order, without those that workers hold.
    shares: Vec<Batch>,
    /// The longest time that a worker took for a share.
    slowest: Duration,
    /// The error of a worker, after which no more shares arrive.
    failed: Option<RunError>,
}

/// A worker thread, which fills one share of every batch.
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Result<FilledShare, DataError>>,
}

pub(crate) struct Loader<'a> {
    source: BatchSource<'a>,
    /// The samples of each share.
    shares: Vec<Range<u64>>,
    /// One worker for each share. Empty if steps assemble their own batches.
    workers: Vec<Worker>,
    slots: Vec<Slot>,
    /// The memory of an evaluation batch that has its own size.
    evaluation: Option<Batch>,
    /// Batches that steps have requested so far.
    requested: usize,
    stopped: Arc<AtomicBool>,
}

impl<'a> Loader<'a> {
    /// Starts the workers and lets each fill its share once, so that the threads' own memory is resident before the
    /// run's memory is measured.
    ///
    /// # Errors
    /// A thread that cannot be started, or data that cannot be read.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, 'a>,
        source: BatchSource<'a>,
    ) -> Result<Loader<'a>, RunError> {
        let workers = source.config().strategy.loader.workers;
        let shares = shares(source.samples(), workers.max(1) as u64);
        let stopped = Arc::new(AtomicBool::new(false));
        let mut loader = Loader {
            source,
            shares,
            workers: Vec::new(),
            slots: Vec::new(),
            evaluation: None,
            requested: 0,
            stopped,
        };
        if workers == 0 {
            return Ok(loader);
        }
        for (number, samples) in loader.shares.iter().enumerate() {
            let (jobs, queue) = channel::<Job>();
            let (finished, done) = channel();
            let (samples, stopped) = (samples.clone(), Arc::clone(&loader.stopped));
            let work = move || {
                for Job { step, mut batch, delays } in queue {
                    let began = Instant::now();
                    let filled = source.training(step, samples.clone(), &mut batch);
                    if delays {
                        delay(source, &samples, &stopped);
                    }
                    let filled = filled.map(|()| FilledShare { batch, took: began.elapsed() });
                    // Once the run is over, there is no receiver.
                    if stopped.load(Ordering::Relaxed) || finished.send(filled).is_err() {
                        return;
                    }
                }
            };
            let named = thread::Builder::new().name(format!("loader-{number}"));
            named.spawn_scoped(scope, work).map_err(RunError::NoThread)?;
            loader.workers.push(Worker { jobs, done });
        }
        loader.warm_up()?;
        Ok(loader)
    }

    /// Lets each worker fill its share once, in memory outside the run's pools.
    fn warm_up(&mut self) -> Result<(), RunError> {
        for (worker, samples) in self.workers.iter().zip(&self.shares) {
            let batch = self.source.config().empty_batch((samples.end - samples.start) as usize);
            worker.send(Job { step: 0, batch, delays: false });
        }
        self.workers.iter().try_for_each(|worker| worker.wait_filled().map(drop))
    }

    /// Loads the data that the run holds in memory, if any, borrows the host buffers' batches and lets the workers
    /// fill them.
    ///
    /// # Errors
    /// Data that cannot be read, or a device that fails.
    pub(crate) fn attach(&mut self, engine: &mut Engine<'_>) -> Result<(), RunError> {
        self.source.hold(engine)?;
        let config = self.source.config();
        // The host buffers hold the samples of this rank.
        let first = self.source.samples().start;
        let samples = |share: &Range<u64>| (share.start - first) as usize..(share.end - first) as usize;
        for slot in 0..config.strategy.loader.slots() {
            let shares = self.shares.iter().map(|share| {
                config.batch_within(|part| -> Result<Memory, DeviceError> {
                    Ok(Box::new(engine.lend(slot, samples(share), part)?))
                })
            });
            self.slots.push(Slot { shares: shares.collect::<Result<_, _>>()?, ..Slot::default() });
        }
        if config.evaluation_batch().is_some() {
            let lent =
                |part: &Part| -> Result<Memory, DeviceError> { Ok(Box::new(engine.lend_evaluation(part)?)) };
            self.evaluation = Some(config.evaluation_batch_within(lent)?);
        }
        (0..self.slots.len()).for_each(|slot| self.refill(slot, slot));
        Ok(())
    }

    /// Sends the batch of a slot to the workers, if there are any, to be filled for a step.
    fn refill(&mut self, slot: usize, step: usize) {
        if self.workers.is_empty() {
            return;
        }
        let shares = std::mem::take(&mut self.slots[slot]).shares.into_iter();
        self.workers
            .iter()
            .zip(shares)
            .for_each(|(worker, batch)| worker.send(Job { step, batch, delays: true }));
    }

    /// Waits for the batch of the next step. The slot of the step before is reused.
    ///
    /// # Errors
    /// Data that cannot be read, or has changed.
    pub(crate) fn next(&mut self) -> Result<LoadedBatch, RunError> {
        let (step, slots) = (self.requested, self.slots.len());
        let slot = step % slots;
        self.requested += 1;
        if self.workers.is_empty() {
            for (samples, batch) in self.shares.iter().zip(&mut self.slots[slot].shares) {
                self.source.training(step, samples.clone(), batch)?;
                delay(self.source, samples, &self.stopped);
            }
            return Ok(LoadedBatch { slot, next: None, took: None });
        }
        if let Some(last) = step.checked_sub(1) {
            self.refill(last % slots, last + slots);
        }
        self.receive(slot, true);
        let next = (step + 1) % slots;
        let is_there = next != slot && self.receive(next, false);
        let Slot { slowest, failed, .. } = &mut self.slots[slot];
        match failed.take() {
            Some(error) => Err(error),
            None => Ok(LoadedBatch { slot, next: is_there.then_some(next), took: Some(*slowest) }),
        }
    }

    /// Receives filled shares of a slot, waiting for all of them if `waits`. Returns whether the batch is complete.
    fn receive(&mut self, slot: usize, waits: bool) -> bool {
        let Slot { shares, slowest, failed } = &mut self.slots[slot];
        while failed.is_none() && shares.len() < self.workers.len() {
            let worker = &self.workers[shares.len()];
            match if waits { Some(worker.wait_filled()) } else { worker.try_filled() } {
                None => return false,
                Some(Ok(FilledShare { batch, took })) => {
                    shares.push(batch);
                    *slowest = (*slowest).max(took);
                }
                Some(Err(error)) => *failed = Some(error),
            }
        }
        failed.is_none()
    }

    /// Fills in batch `index` of `of` batches of the evaluation split, in the slot of the last step's batch or, if
    /// evaluation batches have their own size, in memory of their own.
    ///
    /// # Errors
    /// As for `next`.
    pub(crate) fn evaluation(&mut self, index: usize, of: usize) -> Result<LoadedBatch, RunError> {
        let last = self.requested.checked_sub(1).expect("steps come before evaluations");
        let slot = last % self.slots.len();
        let (config, own) = (self.source.config(), self.source.evaluation_samples());
        let samples = config.evaluation_batch().unwrap_or(config.train.batch_size) as u64;
        let (first, of) = (index as u64 * samples, of as u64 * samples);
        if let (Some(batch), Some(own)) = (&mut self.evaluation, own) {
            self.source.evaluation(of, first + own.start..first + own.end, batch)?;
            return Ok(LoadedBatch { slot, next: None, took: None });
        }
        for (share, batch) in self.shares.iter().zip(&mut self.slots[slot].shares) {
            self.source.evaluation(of, first + share.start..first + share.end, batch)?;
        }
        Ok(LoadedBatch { slot, next: None, took: None })
    }

    /// The number of padding tokens and of all tokens of a batch. `None` if samples cannot be padded.
    pub(crate) fn padding(&self, loaded: LoadedBatch) -> Option<[u64; 2]> {
        let context = self.source.context();
        let of_shares: Option<Vec<[u64; 2]>> =
            self.slots[loaded.slot].shares.iter().map(|share| share.padding(context)).collect();
        of_shares.map(|shares| shares.into_iter().fold([0; 2], |[a, b], [c, d]| [a + c, b + d]))
    }

    /// How the batches of these times were loaded. `None` if the strategy does not set the loader.
    pub(crate) fn loading(&self, times: &StepTimes) -> Option<Loading> {
        let is_configured = self.source.config().strategy.loader != spec::Loader::default();
        is_configured.then(|| Loading::new(self.workers.len(), times))
    }
}

impl Drop for Loader<'_> {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// A worker ends before the loader only by a panic, which is reported.
const WORKER_PANICKED: &str = "a loader thread panicked";

impl Worker {
    fn send(&self, job: Job) {
        self.jobs.send(job).expect(WORKER_PANICKED);
    }

    /// Waits for the next filled share.
    fn wait_filled(&self) -> Result<FilledShare, RunError> {
        Ok(self.done.recv().expect(WORKER_PANICKED)?)
    }

    /// The next filled share, if there is one now.
    fn try_filled(&self) -> Option<Result<FilledShare, RunError>> {
        match self.done.try_recv() {
            Err(TryRecvError::Empty) => None,
            done => Some(done.expect(WORKER_PANICKED).map_err(RunError::from)),
        }
    }
}

/// The longest sleep between checks of the stop flag.
const NAP: Duration = Duration::from_millis(50);

/// Sleeps for `loader.delay` per sample, unless stopped.
fn delay(source: BatchSource, samples: &Range<u64>, stopped: &AtomicBool) {
    for _ in samples.clone() {
        let mut left = source.config().strategy.loader.delay();
        while !left.is_zero() && !stopped.load(Ordering::Relaxed) {
            let nap = left.min(NAP);
            thread::sleep(nap);
            left -= nap;
        }
    }
}

/// Divides samples into at most `count` shares, none of them empty.
fn shares(samples: Range<u64>, count: u64) -> Vec<Range<u64>> {
    let of_all = samples.end - samples.start;
    let count = count.min(of_all).max(1);
    let begin = |share: u64| samples.start + share * of_all / count;
    (0..count).map(|share| begin(share)..begin(share + 1)).collect()
}
