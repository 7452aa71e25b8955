//! Ctrl-C, SIGTERM, and the signals by which schedulers announce a time limit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;

/// The exit code of an interrupted sweep.
const INTERRUPTED: i32 = 130;

/// How a sweep ends on a signal: at once while it has trained nothing, then after the results so far are complete, unless a
/// second signal follows.
pub(crate) struct Signals {
    ends_at_once: Arc<AtomicBool>,
    interrupt: Interrupt,
}

/// Whether a signal came, and which kind.
#[derive(Default)]
pub(super) struct Interrupt {
    flag: Arc<AtomicBool>,
    time_limit: Arc<AtomicBool>,
}

impl Interrupt {
    /// Set by any of the signals.
    pub(super) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    pub(super) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Whether a scheduler announced the end of the task's time.
    pub(super) fn is_time_limit(&self) -> bool {
        self.time_limit.load(Ordering::Relaxed)
    }
}

impl Signals {
    /// Handles signals from now on: before that, they end the process with their own code.
    pub(crate) fn watch() -> io::Result<Signals> {
        let signals =
            Signals { ends_at_once: Arc::new(AtomicBool::new(true)), interrupt: Interrupt::default() };
        let Interrupt { flag, time_limit } = &signals.interrupt;
        for signal in [SIGINT, SIGTERM, SIGUSR1, SIGUSR2] {
            // Handlers run in the order of registration.
            flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&signals.ends_at_once))?;
            flag::register(signal, Arc::clone(&signals.ends_at_once))?;
            if [SIGUSR1, SIGUSR2].contains(&signal) {
                flag::register(signal, Arc::clone(time_limit))?;
            }
            flag::register(signal, Arc::clone(flag))?;
        }
        Ok(signals)
    }

    /// From now on, the first signal sets the returned flags, and the second ends the program.
    pub(super) fn finish_gracefully(&self) -> &Interrupt {
        self.ends_at_once.store(false, Ordering::Relaxed);
        &self.interrupt
    }
}
