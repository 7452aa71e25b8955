//! Threads that share out the tasks of one job at a time.
//!
//! An operation of a small model takes tens of microseconds, about what waking a thread takes. So the caller
//! works too, threads that have run out of work look out for more for a while before they sleep, and nobody waits
//! for a thread that wakes up too late to help. Each member begins with a share of its own, the same stretch of
//! every job: what one operation leaves in a core's cache, the next one finds there. Then it helps the others.
#![allow(unsafe_code)] // A job is lent to other threads for as long as it runs.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How often an idle thread looks for work before it sleeps: about a tenth of a millisecond.
const LOOKS: usize = 2000;
/// After so many looks, other threads of the system get a turn in between.
const LOOKS_ALONE: usize = 1000;

/// A job's tasks are numbers: the function is called once for each, with the number of the member that does it.
type Work<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// The job that can be joined: a generation, which tells jobs apart, whether it is open, and how many threads work
/// on it.
#[derive(Clone, Copy)]
struct State(u64);

impl State {
    const OPEN: u64 = 1 << 31;
    const ACTIVE: u64 = State::OPEN - 1;
    const NO_GENERATION: u64 = u64::MAX;

    fn opened(self) -> State {
        State((self.0 >> 32).wrapping_add(1) << 32 | State::OPEN)
    }

    fn generation(self) -> u64 {
        self.0 >> 32
    }

    fn is_open(self) -> bool {
        self.0 & State::OPEN != 0
    }

    fn active(self) -> u64 {
        self.0 & State::ACTIVE
    }
}

/// What the threads of a team share.
#[derive(Default)]
struct Shared {
    state: AtomicU64,
    /// The open job's function and its number of tasks. Written only while no job is open and nobody is active.
    job: Job,
    /// By member: the first task of its share that nobody has taken.
    next: Vec<Next>,
    sleepers: AtomicUsize,
    asleep: Mutex<Asleep>,
    wake: Condvar,
    /// What a task of the open job panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Next(AtomicUsize);

#[derive(Default)]
struct Asleep {
    /// Whether the team is being dismissed.
    dismissed: bool,
}

#[derive(Default)]
struct Job(std::cell::UnsafeCell<Option<(Work<'static>, usize)>>);

// SAFETY: written by the caller alone while the job is closed, read by others only after they joined an open one.
unsafe impl Sync for Job {}

/// The caller's thread and others.
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held while a job runs.
    busy: Mutex<()>,
}

impl ThreadPool {
    /// # Errors
    ///
    /// The system has no thread to spare.
    pub(super) fn new(threads: usize) -> std::io::Result<ThreadPool> {
        let next = (0..threads.max(1)).map(|_| Next::default()).collect();
        let shared = Arc::new(Shared { next, ..Shared::default() });
        let mut team = ThreadPool { shared, helpers: Vec::new(), busy: Mutex::new(()) };
        for member in 1..threads {
            let shared = team.shared.clone();
            let thread = std::thread::Builder::new().name(format!("compute-{member}"));
            team.helpers.push(thread.spawn(move || shared.help(member))?);
        }
        Ok(team)
    }

    /// Calls `work` for each number below `tasks` once, in any order, and returns when all calls have. A member does
    /// one task at a time, and the caller is member 0. A task must not start a job itself.
    ///
    /// # Panics
    ///
    /// If a task does, once no other is running.
    pub(super) fn run(&self, tasks: usize, work: Work) {
        let _busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: no job is open and nobody is active, and `Opened` sees to it that none is when `work` ends.
        unsafe {
            let work = std::mem::transmute::<Work<'_>, Work<'static>>(work);
            *shared.job.0.get() = Some((work, tasks));
        }
        // What a helper panicked with when the caller did too.
        shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        for (member, next) in shared.next.iter().enumerate() {
            next.0.store(shared.share(member, tasks).start, Ordering::Relaxed);
        }
        let opened = Opened::new(shared);
        shared.take_tasks(0, work, tasks);
        drop(opened);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.asleep.lock().unwrap_or_else(PoisonError::into_inner).dismissed = true;
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches what tasks panic with.
            let _ = helper.join();
        }
    }
}

/// An open job. Dropped, also by a panic, it is closed, and nobody works on it any more.
struct Opened<'a>(&'a Shared);

impl Opened<'_> {
    fn new(shared: &Shared) -> Opened<'_> {
        let closed = State(shared.state.load(Ordering::Relaxed));
        // In one order with `sleepers`: either the sleeper sees the job or it is seen here.
        shared.state.store(closed.opened().0, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(shared.asleep.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        Opened(shared)
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        let mut state = State(self.0.state.fetch_and(!State::OPEN, Ordering::Acquire));
        let mut looks = 0;
        while state.active() > 0 {
            pause(&mut looks);
            state = State(self.0.state.load(Ordering::Acquire));
        }
    }
}

impl Shared {
    /// What a helper does, until the team is dismissed.
    fn help(&self, member: usize) {
        let mut done = State::NO_GENERATION;
        while let Some((generation, (work, tasks))) = self.join(done) {
            let outcome = catch_unwind(AssertUnwindSafe(|| self.take_tasks(member, work, tasks)));
            if let Err(panic) = outcome {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            done = generation;
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// The tasks that a member begins with.
    fn share(&self, member: usize, tasks: usize) -> Range<usize> {
        let members = self.next.len();
        tasks * member / members..tasks * (member + 1) / members
    }

    /// Does what is left of the member's own share, then of the others'.
    fn take_tasks(&self, member: usize, work: Work, tasks: usize) {
        let members = self.next.len();
        for owner in (member..members).chain(0..member) {
            let end = self.share(owner, tasks).end;
            loop {
                let task = self.next[owner].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(member, task);
            }
        }
    }

    /// Joins the next job after `done`; `None` when there will be none.
    fn join(&self, done: u64) -> Option<(u64, (Work<'static>, usize))> {
        let mut looks = 0;
        loop {
            let state = State(self.state.load(Ordering::Acquire));
            if state.is_open() && state.generation() != done {
                let joined =
                    self.state.compare_exchange(state.0, state.0 + 1, Ordering::AcqRel, Ordering::Relaxed);
                if joined.is_ok() {
                    // SAFETY: the job is open and stays until this thread is no longer active.
                    let job = unsafe { *self.job.0.get() };
                    return Some((state.generation(), job.expect("an open job has its function")));
                }
            } else if looks < LOOKS {
                pause(&mut looks);
            } else {
                looks = 0;
                if self.sleep(done) {
                    return None;
                }
            }
        }
    }

    /// Sleeps until a job after `done` is open. Whether the team is dismissed.
    fn sleep(&self, done: u64) -> bool {
        let mut asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = State(self.state.load(Ordering::SeqCst));
            if asleep.dismissed || (state.is_open() && state.generation() != done) {
                self.sleepers.fetch_sub(1, Ordering::Relaxed);
                return asleep.dismissed;
            }
            asleep = self.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Passes a moment, ever more politely.
fn pause(looks: &mut usize) {
    *looks += 1;
    if *looks < LOOKS_ALONE {
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
    fn every_task_is_done_once() {
        for threads in 1..=5 {
            let team = ThreadPool::new(threads).unwrap();
            for tasks in (0..40).chain([1000]) {
                let calls: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|_, task| {
                    calls[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 1));
            }
        }
    }

    /// So short that helpers come late, meet the next job, or sleep in between.
    #[test]
    fn jobs_that_follow_each_other_do_not_meet() {
        let team = ThreadPool::new(4).unwrap();
        for job in 1..20_000 {
            let calls: [AtomicUsize; 5] = Default::default();
            let tasks = job % (calls.len() + 1);
            team.run(tasks, &|_, task| {
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

    /// Both threads have to be at work at once for either to come to its end.
    #[test]
    fn tasks_run_beside_each_other_also_after_a_sleep() {
        let team = ThreadPool::new(2).unwrap();
        for pause in [0, 20] {
            std::thread::sleep(Duration::from_millis(pause));
            let meeting = std::sync::Barrier::new(2);
            team.run(2, &|_, _| {
                meeting.wait();
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = ThreadPool::new(3).unwrap();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            team.run(100, &|_, task| assert!(task != 50, "task 50"));
        }));
        assert!(outcome.is_err());
        let done = AtomicUsize::new(0);
        team.run(100, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 100);
    }
}
