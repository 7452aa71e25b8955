//! What other programs took of the processors while a run was timed: its speed is then not its own.

use std::fs;
use std::time::Instant;

/// The time for which this process's threads were ready to run and did not, until a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contention {
    read_at: Instant,
    waited_s: f64,
}

impl Contention {
    /// Until now. `None` where the system does not count it.
    pub(super) fn now() -> Option<Contention> {
        let waited_s = queued_s()? + stolen_s().unwrap_or(0.0);
        Some(Contention { read_at: Instant::now(), waited_s })
    }

    /// The share of the time since then in which each of the run's threads waited, on average. Where threads ended meanwhile
    /// it is what the others show.
    pub(super) fn share_since(self, threads: usize) -> Option<f64> {
        let now = Contention::now()?;
        let elapsed_s = (now.read_at - self.read_at).as_secs_f64();
        let share = (now.waited_s - self.waited_s) / (elapsed_s * threads.max(1) as f64);
        share.is_finite().then_some(share.clamp(0.0, 1.0))
    }
}

/// Seconds in the processors' queues, of all threads.
fn queued_s() -> Option<f64> {
    let mut nanoseconds = 0u64;
    for task in fs::read_dir("/proc/self/task").ok()? {
        // A thread may end at any time.
        let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
        // Time on a processor, time in its queue, times on it.
        nanoseconds += text.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 / 1e9)
}

/// Seconds that a hypervisor gave to other machines, of the processors that this process may use.
fn stolen_s() -> Option<f64> {
    /// What `/proc/stat` counts in: a hundredth of a second, on every Linux of today.
    const TICKS_PER_S: f64 = 100.0;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let is_allowed = |cpu: u32| {
        allowed.split(',').any(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            first.parse().is_ok_and(|first: u32| first <= cpu)
                && last.parse().is_ok_and(|last: u32| cpu <= last)
        })
    };
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let stolen = stat.lines().filter_map(|line| {
        let (cpu, times) = line.strip_prefix("cpu")?.split_once(' ')?;
        // user, nice, system, idle, iowait, irq, softirq, steal
        is_allowed(cpu.parse().ok()?).then(|| times.split_whitespace().nth(7)?.parse::<f64>().ok())?
    });
    Some(stolen.sum::<f64>() / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// More threads than processors keep each other waiting: those of this process are as good as another's.
    #[test]
    fn threads_that_have_to_wait_for_a_processor_are_seen() {
        let processors = std::thread::available_parallelism().unwrap().get();
        let over = AtomicBool::new(false);
        let share = std::thread::scope(|scope| {
            for _ in 0..3 * processors {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(50));
            let before = Contention::now();
            std::thread::sleep(Duration::from_millis(400));
            let share = before.unwrap().share_since(3 * processors);
            over.store(true, Ordering::Relaxed);
            share
        });
        // Two of three wait.
        assert!((0.3..=1.0).contains(&share.unwrap()), "{share:?}");
    }
}
