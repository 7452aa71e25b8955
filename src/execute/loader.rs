//! Batches, assembled in the memory that the device copies them from: by the step itself, or ahead of it by threads.
//!
//! Each thread has a share of the samples of every batch. A sample is a pure function of seed, step and number, so neither how
//! many threads there are nor how far they are ahead changes a batch.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use super::engine::Engine;
use super::error::RunError;
use super::feed::BatchSource;
use super::measured::{Loading, Times};
use data::{Batch, DataError, Memory};
use device::DeviceError;

/// A batch that is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loaded {
    /// Where among the host buffers' batches it lies.
    pub(super) slot: usize,
    /// Where the one of the next step does, if that is there, too.
    pub(super) next: Option<usize>,
    /// How long the slowest of the threads took for its share, where there are threads.
    pub(super) took: Option<Duration>,
}

/// A share of a batch that is to be filled for a step.
struct Job {
    step: usize,
    batch: Batch,
    /// Whether it takes as much longer as samples are to.
    delays: bool,
}

/// One that is.
struct Done {
    batch: Batch,
    took: Duration,
}

/// A batch of the host_buffers.
#[derive(Default)]
struct Slot {
    /// Its shares, in order, while no worker has them.
    shares: Vec<Batch>,
    /// How long the slowest of those that workers filled took.
    slowest: Duration,
    /// Why there are no more.
    failed: Option<RunError>,
}

/// A thread that fills its share of every batch.
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Result<Done, DataError>>,
}

pub(super) struct Loader<'a> {
    feed: BatchSource<'a>,
    /// The samples of each share.
    shares: Vec<Range<u64>>,
    /// One for each share, or none.
    workers: Vec<Worker>,
    slots: Vec<Slot>,
    /// Batches that steps have asked for.
    taken: usize,
    stopped: Arc<AtomicBool>,
}

impl<'a> Loader<'a> {
    /// Starts the threads. They have filled a sample by the time this returns, so that what they need for themselves is
    /// there before the run's memory is watched.
    ///
    /// # Errors
    /// A thread that the system does not give, or data that cannot be read.
    pub(super) fn start<'scope>(
        scope: &'scope Scope<'scope, 'a>,
        feed: BatchSource<'a>,
    ) -> Result<Loader<'a>, RunError> {
        let workers = feed.config().strategy.loader.workers;
        let shares = shares(feed.config().train.batch_size as u64, workers.max(1) as u64);
        let stopped = Arc::new(AtomicBool::new(false));
        let mut loader = Loader { feed, shares, workers: Vec::new(), slots: Vec::new(), taken: 0, stopped };
        if workers == 0 {
            return Ok(loader);
        }
        for (number, samples) in loader.shares.iter().enumerate() {
            let (jobs, to_do) = channel::<Job>();
            let (finished, done) = channel();
            let (samples, stopped) = (samples.clone(), Arc::clone(&loader.stopped));
            let work = move || {
                for Job { step, mut batch, delays } in to_do {
                    let began = Instant::now();
                    let filled = feed.training(step, samples.clone(), &mut batch);
                    if delays {
                        delay(feed, &samples, &stopped);
                    }
                    let filled = filled.map(|()| Done { batch, took: began.elapsed() });
                    // Nobody takes it once the run is over.
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

    /// Lets each thread fill its share once, in memory that is not the run's.
    fn warm_up(&mut self) -> Result<(), RunError> {
        for (worker, samples) in self.workers.iter().zip(&self.shares) {
            let batch = self.feed.config().empty_batch((samples.end - samples.start) as usize);
            worker.begin(Job { step: 0, batch, delays: false });
        }
        self.workers.iter().try_for_each(|worker| worker.finished().map(drop))
    }

    /// Puts the data where it is held, and takes the memory of the host buffers' batches. Threads begin to fill it.
    ///
    /// # Errors
    /// Data that cannot be read, or a device that fails.
    pub(super) fn open(&mut self, engine: &mut Engine<'_>) -> Result<(), RunError> {
        self.feed.hold(engine)?;
        let config = self.feed.config();
        let samples = |share: &Range<u64>| share.start as usize..share.end as usize;
        for slot in 0..config.strategy.loader.slots() {
            let shares = self.shares.iter().map(|share| {
                config.batch_within(|part| -> Result<Memory, DeviceError> {
                    Ok(Box::new(engine.lend(slot, samples(share), part)?))
                })
            });
            self.slots.push(Slot { shares: shares.collect::<Result<_, _>>()?, ..Slot::default() });
        }
        (0..self.slots.len()).for_each(|slot| self.refill(slot, slot));
        Ok(())
    }

    /// Gives the batch of a slot back to the threads, if there are any, to be filled for a step.
    fn refill(&mut self, slot: usize, step: usize) {
        if self.workers.is_empty() {
            return;
        }
        let shares = std::mem::take(&mut self.slots[slot]).shares.into_iter();
        self.workers
            .iter()
            .zip(shares)
            .for_each(|(worker, batch)| worker.begin(Job { step, batch, delays: true }));
    }

    /// The batch of the next step, counted from 0. That of the step before is given up.
    ///
    /// # Errors
    /// What is read as it is needed cannot be, or has changed.
    pub(super) fn next(&mut self) -> Result<Loaded, RunError> {
        let (step, slots) = (self.taken, self.slots.len());
        let slot = step % slots;
        self.taken += 1;
        if self.workers.is_empty() {
            for (samples, batch) in self.shares.iter().zip(&mut self.slots[slot].shares) {
                self.feed.training(step, samples.clone(), batch)?;
                delay(self.feed, samples, &self.stopped);
            }
            return Ok(Loaded { slot, next: None, took: None });
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
            None => Ok(Loaded { slot, next: is_there.then_some(next), took: Some(*slowest) }),
        }
    }

    /// Takes the shares of a slot that are filled, all of them if that is to be waited for. Whether all are there.
    fn receive(&mut self, slot: usize, waits: bool) -> bool {
        let Slot { shares, slowest, failed } = &mut self.slots[slot];
        while failed.is_none() && shares.len() < self.workers.len() {
            let worker = &self.workers[shares.len()];
            match if waits { Some(worker.finished()) } else { worker.finished_by_now() } {
                None => return false,
                Some(Ok(Done { batch, took })) => {
                    shares.push(batch);
                    *slowest = (*slowest).max(took);
                }
                Some(Err(error)) => *failed = Some(error),
            }
        }
        failed.is_none()
    }

    /// A batch of so many of the evaluation split, in the place of that of the last step.
    ///
    /// # Errors
    /// As for `next`.
    pub(super) fn evaluation(&mut self, index: usize, of: usize) -> Result<Loaded, RunError> {
        let last = self.taken.checked_sub(1).expect("steps come before evaluations");
        let slot = last % self.slots.len();
        let samples = self.feed.config().train.batch_size as u64;
        let first = index as u64 * samples;
        for (share, batch) in self.shares.iter().zip(&mut self.slots[slot].shares) {
            let of = of as u64 * samples;
            self.feed.evaluation(of, first + share.start..first + share.end, batch)?;
        }
        Ok(Loaded { slot, next: None, took: None })
    }

    /// How many tokens of a batch are padding, and how many it has; if some may be.
    pub(super) fn padding(&self, loaded: Loaded) -> Option<[u64; 2]> {
        let context = self.feed.context();
        let of_shares: Option<Vec<[u64; 2]>> =
            self.slots[loaded.slot].shares.iter().map(|share| share.padding(context)).collect();
        of_shares.map(|shares| shares.into_iter().fold([0; 2], |[a, b], [c, d]| [a + c, b + d]))
    }

    /// How the batches of these times came, where it is told how they are to.
    pub(super) fn loading(&self, times: &Times) -> Option<Loading> {
        let is_told = self.feed.config().strategy.loader != spec::Loader::default();
        is_told.then(|| Loading::of(self.workers.len(), times))
    }
}

impl Drop for Loader<'_> {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// Threads end with the loader, or in a crash, which is told.
const WORKS: &str = "it works for as long as there is a loader";

impl Worker {
    fn begin(&self, job: Job) {
        self.jobs.send(job).expect(WORKS);
    }

    /// The next that it has filled, which is waited for.
    fn finished(&self) -> Result<Done, RunError> {
        Ok(self.done.recv().expect(WORKS)?)
    }

    /// The same, if it is there.
    fn finished_by_now(&self) -> Option<Result<Done, RunError>> {
        match self.done.try_recv() {
            Err(TryRecvError::Empty) => None,
            done => Some(done.expect(WORKS).map_err(RunError::from)),
        }
    }
}

/// A thread that is stopped sleeps no longer than that.
const NAP: Duration = Duration::from_millis(50);

/// Takes as much longer as so many samples are to, unless it is stopped.
fn delay(feed: BatchSource, samples: &Range<u64>, stopped: &AtomicBool) {
    for _ in samples.clone() {
        let mut left = feed.config().strategy.loader.delay();
        while !left.is_zero() && !stopped.load(Ordering::Relaxed) {
            let nap = left.min(NAP);
            thread::sleep(nap);
            left -= nap;
        }
    }
}

/// So many samples in as many shares, or in fewer where there are not as many samples; none is empty.
fn shares(samples: u64, count: u64) -> Vec<Range<u64>> {
    let count = count.min(samples).max(1);
    let begin = |share: u64| share * samples / count;
    (0..count).map(|share| begin(share)..begin(share + 1)).collect()
}
