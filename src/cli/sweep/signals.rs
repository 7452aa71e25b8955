//! Ctrl-C and SIGTERM.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code of an interrupted sweep.
const INTERRUPTED: i32 = 130;

/// How a sweep ends on Ctrl-C or SIGTERM: at once while it has trained nothing, then after the results so far are complete,
/// unless a second signal follows.
pub(crate) struct Signals {
    ends_at_once: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
}

impl Signals {
    /// Handles signals from now on: before that, they end the process with their own code.
    pub(crate) fn watch() -> io::Result<Signals> {
        let signals = Signals { ends_at_once: Arc::new(AtomicBool::new(true)), interrupted: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // Handlers run in the order of registration.
            flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&signals.ends_at_once))?;
            flag::register(signal, Arc::clone(&signals.ends_at_once))?;
            flag::register(signal, Arc::clone(&signals.interrupted))?;
        }
        Ok(signals)
    }

    /// From now on, the first signal sets the returned flag, and the second ends the program.
    pub(super) fn finish_gracefully(&self) -> &AtomicBool {
        self.ends_at_once.store(false, Ordering::Relaxed);
        &self.interrupted
    }
}
