//! A thread pool that runs the tasks of one job at a time.
//!
//! An operation of a small model takes tens of microseconds, about as long as waking a thread. So the caller works
//! too, idle threads poll for the next job before they sleep, and a job never waits for a thread that wakes up late.
//! Each worker starts with its own range of tasks, the same range of every job, so that data that one operation leaves
//! in a core's cache is reused by the next. Then it steals tasks from the ranges of the other workers.
#![allow(unsafe_code)] // Other threads borrow a job's function while the job runs.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Polls of an idle thread before it sleeps: about a tenth of a millisecond.
const POLLS_BEFORE_SLEEP: usize = 2000;
/// Polls that spin; later ones yield the core to other threads.
const SPINNING_POLLS: usize = 1000;

/// The function of a job. It is called as `f(worker, task)`, once for each task number.
type JobFn<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// State of the current job, packed into a word: its generation (upper 32 bits), whether it is open (bit 31), and the
/// number of helper threads that work on it.
#[derive(Clone, Copy)]
struct JobState(u64);

impl JobState {
    const OPEN: u64 = 1 << 31;
    const ACTIVE: u64 = JobState::OPEN - 1;
    const NO_GENERATION: u64 = u64::MAX;

    fn opened(self) -> JobState {
        JobState((self.0 >> 32).wrapping_add(1) << 32 | JobState::OPEN)
    }

    fn generation(self) -> u64 {
        self.0 >> 32
    }

    fn is_open(self) -> bool {
        self.0 & JobState::OPEN != 0
    }

    fn active(self) -> u64 {
        self.0 & JobState::ACTIVE
    }
}

/// Data shared by the threads of a pool.
#[derive(Default)]
struct Shared {
    state: AtomicU64,
    /// The open job's function and its number of tasks. Written only while no job is open and no helper is active.
    job: Job,
    /// By worker: the first task of its range that no thread has taken.
    next_tasks: Vec<NextTask>,
    sleepers: AtomicUsize,
    shutdown: Mutex<Shutdown>,
    wake: Condvar,
    /// The panic payload of a task of the open job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A counter in its own cache line.
#[derive(Default)]
#[repr(align(64))]
struct NextTask(AtomicUsize);

#[derive(Default)]
struct Shutdown {
    requested: bool,
}

#[derive(Default)]
struct Job(std::cell::UnsafeCell<Option<(JobFn<'static>, usize)>>);

// SAFETY: only the caller writes it, while the job is closed; other threads read it only after they joined an open job.
unsafe impl Sync for Job {}

/// The caller's thread, which is worker 0, and helper threads.
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held while a job runs.
    busy: Mutex<()>,
}

impl ThreadPool {
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub(super) fn new(threads: usize) -> std::io::Result<ThreadPool> {
        let next_tasks = (0..threads.max(1)).map(|_| NextTask::default()).collect();
        let shared = Arc::new(Shared { next_tasks, ..Shared::default() });
        let mut pool = ThreadPool { shared, helpers: Vec::new(), busy: Mutex::new(()) };
        for worker in 1..threads {
            let shared = pool.shared.clone();
            let thread = std::thread::Builder::new().name(format!("compute-{worker}"));
            pool.helpers.push(thread.spawn(move || shared.run_helper(worker))?);
        }
        Ok(pool)
    }

    /// Calls `work(worker, task)` once for each task number below `tasks`, in any order, and returns after the last
    /// call. A worker runs one task at a time; the caller is worker 0. A task must not start a job itself.
    ///
    /// # Panics
    ///
    /// If a task panics, after all running tasks have ended.
    pub(super) fn run(&self, tasks: usize, work: JobFn) {
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: no job is open and no helper is active; `OpenJob` waits for all helpers before `work` goes out of
        // scope.
        unsafe {
            let work = std::mem::transmute::<JobFn<'_>, JobFn<'static>>(work);
            *shared.job.0.get() = Some((work, tasks));
        }
        // Drop a helper's panic payload of an earlier job in which the caller panicked too.
        shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (worker, next_task) in shared.next_tasks.iter().enumerate() {
            next_task.0.store(shared.initial_range(worker, tasks).start, Ordering::Relaxed);
        }
        let open_job = OpenJob::new(shared);
        shared.take_tasks(0, work, tasks);
        drop(open_job);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.shutdown.lock().unwrap_or_else(PoisonError::into_inner).requested = true;
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // Helpers catch the panics of tasks.
            let _ = helper.join();
        }
    }
}

/// An open job. Dropping it, also during a panic, closes the job and waits until no helper works on it.
struct OpenJob<'a>(&'a Shared);

impl OpenJob<'_> {
    fn new(shared: &Shared) -> OpenJob<'_> {
        let closed = JobState(shared.state.load(Ordering::Relaxed));
        // Sequentially consistent with `sleepers`: either the sleeper sees the job, or this thread sees the sleeper.
        shared.state.store(closed.opened().0, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(shared.shutdown.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        OpenJob(shared)
    }
}

impl Drop for OpenJob<'_> {
    fn drop(&mut self) {
        let mut state = JobState(self.0.state.fetch_and(!JobState::OPEN, Ordering::Acquire));
        let mut polls = 0;
        while state.active() > 0 {
            pause(&mut polls);
            state = JobState(self.0.state.load(Ordering::Acquire));
        }
    }
}

impl Shared {
    /// The loop of a helper thread, until shutdown.
    fn run_helper(&self, worker: usize) {
        let mut done = JobState::NO_GENERATION;
        while let Some((generation, (work, tasks))) = self.join(done) {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.take_tasks(worker, work, tasks)));
            if let Err(panic) = outcome {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            done = generation;
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// The tasks that a worker starts with.
    fn initial_range(&self, worker: usize, tasks: usize) -> Range<usize> {
        let workers = self.next_tasks.len();
        tasks * worker / workers..tasks * (worker + 1) / workers
    }

    /// Runs the remaining tasks of the worker's own range, then those of the other workers' ranges.
    fn take_tasks(&self, worker: usize, work: JobFn, tasks: usize) {
        let workers = self.next_tasks.len();
        for owner in (worker..workers).chain(0..worker) {
            let end = self.initial_range(owner, tasks).end;
            loop {
                let task = self.next_tasks[owner].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(worker, task);
            }
        }
    }

    /// Waits for the next job after generation `done` and joins it; `None` after shutdown.
    fn join(&self, done: u64) -> Option<(u64, (JobFn<'static>, usize))> {
        let mut polls = 0;
        loop {
            let state = JobState(self.state.load(Ordering::Acquire));
            if state.is_open() && state.generation() != done {
                let joined =
                    self.state.compare_exchange(state.0, state.0 + 1, Ordering::AcqRel, Ordering::Relaxed);
                if joined.is_ok() {
                    // SAFETY: the job is open, and is not replaced while this thread is active.
                    let job = unsafe { *self.job.0.get() };
                    return Some((state.generation(), job.expect("an open job has its function")));
                }
            } else if polls < POLLS_BEFORE_SLEEP {
                pause(&mut polls);
            } else {
                polls = 0;
                if self.sleep(done) {
                    return None;
                }
            }
        }
    }

    /// Sleeps until a job after generation `done` is open, or until shutdown. Returns whether shutdown was requested.
    fn sleep(&self, done: u64) -> bool {
        let mut shutdown = self.shutdown.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = JobState(self.state.load(Ordering::SeqCst));
            if shutdown.requested || (state.is_open() && state.generation() != done) {
                self.sleepers.fetch_sub(1, Ordering::Relaxed);
                return shutdown.requested;
            }
            shutdown = self.wake.wait(shutdown).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Waits between two polls: spins first, then yields.
fn pause(polls: &mut usize) {
    *polls += 1;
    if *polls < SPINNING_POLLS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 1..=5 {
            let pool = ThreadPool::new(threads).unwrap();
            for tasks in (0..40).chain([1000]) {
                let calls: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|_, task| {
                    calls[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
            }
        }
    }

    /// The jobs are so short that helpers are late, join the next job, or sleep in between.
    #[test]
    fn consecutive_jobs_do_not_mix() {
        let pool = ThreadPool::new(4).unwrap();
        for job in 1..20_000 {
            let calls: [AtomicUsize; 5] = Default::default();
            let tasks = job % (calls.len() + 1);
            pool.run(tasks, &|_, task| {
                calls[task].fetch_add(job, Ordering::Relaxed);
            });
            let calls = calls.map(AtomicUsize::into_inner);
            assert!(calls[..tasks].iter().all(|&call| call == job), "job {job}: {calls:?}");
            assert!(calls[tasks..].iter().all(|&call| call == 0), "job {job}: {calls:?}");
            if job % 500 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// The barrier is passed only if both threads run a task at the same time.
    #[test]
    fn tasks_run_concurrently_also_after_threads_slept() {
        let pool = ThreadPool::new(2).unwrap();
        for pause in [0, 20] {
            std::thread::sleep(Duration::from_millis(pause));
            let barrier = std::sync::Barrier::new(2);
            pool.run(2, &|_, _| {
                barrier.wait();
            });
        }
    }

    #[test]
    fn panic_reaches_caller_and_pool_stays_usable() {
        let pool = ThreadPool::new(3).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|_, task| assert!(task != 50, "task 50"));
        }));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        pool.run(100, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 100);
    }
}
