//! CPU time that other programs took from a run while it was timed.

use std::fs;
use std::time::Instant;

/// Counters, in seconds, of this process's threads and of the CPU cores that it may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention {
    read_at: Instant,
    /// Time that its threads were ready to run, but waited.
    waited_s: f64,
    /// Time that its threads ran.
    ran_s: f64,
    /// Time that the cores were busy, with any program.
    busy_s: f64,
}

impl Contention {
    /// Reads the counters. `None` if the system does not have them.
    pub(crate) fn now() -> Option<Contention> {
        let (own, processors) = (OwnThreads::now()?, Processors::now()?);
        Some(Contention {
            read_at: Instant::now(),
            waited_s: own.waited_s + processors.stolen_s,
            ran_s: own.ran_s,
            busy_s: processors.busy_s + processors.stolen_s,
        })
    }

    /// The average share of the time since then that a thread of the run waited for other programs. The waiting time is
    /// limited to the time that others used the cores, since a run may have more threads than cores. Threads that ended
    /// meanwhile are not counted.
    pub(crate) fn share_since(self, threads: usize) -> Option<f64> {
        self.share_until(Contention::now()?, threads)
    }

    fn share_until(self, now: Contention, threads: usize) -> Option<f64> {
        let elapsed_s = (now.read_at - self.read_at).as_secs_f64();
        let others_s = (now.busy_s - self.busy_s) - (now.ran_s - self.ran_s);
        let waited_s = (now.waited_s - self.waited_s).min(others_s);
        let share = waited_s / (elapsed_s * threads.max(1) as f64);
        share.is_finite().then_some(share.clamp(0.0, 1.0))
    }
}

/// CPU time of this process's threads.
struct OwnThreads {
    ran_s: f64,
    waited_s: f64,
}

impl OwnThreads {
    fn now() -> Option<OwnThreads> {
        let (mut ran, mut waited) = (0u64, 0u64);
        for task in fs::read_dir("/proc/self/task").ok()? {
            // A thread may end at any time.
            let Ok(text) = fs::read_to_string(task.ok()?.path().join("schedstat")) else { continue };
            // Nanoseconds on a processor and in its queue, times on it.
            let mut counts = text.split_whitespace().map(str::parse::<u64>);
            ran += counts.next()?.ok()?;
            waited += counts.next()?.ok()?;
        }
        Some(OwnThreads { ran_s: ran as f64 / 1e9, waited_s: waited as f64 / 1e9 })
    }
}

/// Busy time of the CPU cores that this process may use.
struct Processors {
    busy_s: f64,
    /// Time that the hypervisor gave to other virtual machines.
    stolen_s: f64,
}

impl Processors {
    fn now() -> Option<Processors> {
        /// The unit of `/proc/stat`: a hundredth of a second, on every current Linux.
        const TICKS_PER_S: f64 = 100.0;
        /// Columns of `/proc/stat`, among user, nice, system, idle, iowait, irq, softirq, steal.
        const BUSY: [usize; 5] = [0, 1, 2, 5, 6];
        const STOLEN: usize = 7;
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
        let is_allowed = |cpu: u32| {
            allowed.split(',').any(|part| {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                first.parse().is_ok_and(|first: u32| first <= cpu)
                    && last.parse().is_ok_and(|last: u32| cpu <= last)
            })
        };
        let (mut busy, mut stolen) = (0.0, 0.0);
        for line in fs::read_to_string("/proc/stat").ok()?.lines() {
            let Some((cpu, ticks)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' ')) else {
                continue;
            };
            if !cpu.parse().is_ok_and(is_allowed) {
                continue;
            }
            let ticks: Vec<f64> = ticks.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
            busy += BUSY.iter().filter_map(|&of| ticks.get(of)).sum::<f64>();
            stolen += ticks.get(STOLEN)?;
        }
        Some(Processors { busy_s: busy / TICKS_PER_S, stolen_s: stolen / TICKS_PER_S })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;

    /// Busy-looping programs, two for each core.
    struct Others(Vec<Child>);

    impl Drop for Others {
        fn drop(&mut self) {
            for child in &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    #[test]
    fn waiting_for_other_programs_is_measured() {
        let processors = std::thread::available_parallelism().unwrap().get();
        let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let _others = Others((0..2 * processors).map(|_| busy()).collect());
        std::thread::sleep(Duration::from_millis(50));
        let before = Contention::now().unwrap();
        while before.read_at.elapsed() < Duration::from_millis(600) {
            std::hint::spin_loop();
        }
        // Three programs compete for each core.
        let share = before.share_since(1).unwrap();
        assert!((0.2..=1.0).contains(&share), "{share}");
    }

    #[test]
    fn waiting_for_own_threads_is_not_contention() {
        let begin = Contention { read_at: Instant::now(), waited_s: 1.0, ran_s: 5.0, busy_s: 70.0 };
        let after = |waited_s: f64, ran_s: f64, busy_s: f64| Contention {
            read_at: begin.read_at + Duration::from_secs(10),
            waited_s: begin.waited_s + waited_s,
            ran_s: begin.ran_s + ran_s,
            busy_s: begin.busy_s + busy_s,
        };
        // Three threads on two cores: without other programs, and with others for one second of each core.
        assert_eq!(begin.share_until(after(10.0, 20.0, 20.0), 2), Some(0.0));
        assert_eq!(begin.share_until(after(12.0, 18.0, 20.0), 2), Some(0.1));
        // Programs on other cores do not disturb the run.
        assert_eq!(begin.share_until(after(0.0, 10.0, 20.0), 1), Some(0.0));
        // The busy time, counted in ticks, may be less than the exact run time.
        assert_eq!(begin.share_until(after(1.0, 20.0, 19.9), 2), Some(0.0));
    }
}
