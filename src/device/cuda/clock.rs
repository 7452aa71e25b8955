//! A queue's own clock: events with the time at which the card came to them.

use std::time::Duration;

use super::calls::driver::{self as sys, CUevent_flags_enum as EventFlags};
use super::driver::check;
use super::errors::Failed;

/// Events of a context, used again and again. Dropped before it.
#[derive(Default)]
pub(super) struct Clock {
    events: Vec<sys::CUevent>,
    /// How many of them were recorded since the clock was last read.
    recorded: usize,
}

impl Clock {
    pub(super) fn lap(&mut self, stream: sys::CUstream) -> Result<(), Failed> {
        if self.recorded == self.events.len() {
            let mut event = std::ptr::null_mut();
            let flags = EventFlags::CU_EVENT_DEFAULT as u32;
            // SAFETY: a context is current.
            check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
            self.events.push(event);
        }
        // SAFETY: both live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.events[self.recorded], stream) })?;
        self.recorded += 1;
        Ok(())
    }

    /// From each event to the next, as the card was at them.
    pub(super) fn laps(&mut self) -> Result<Vec<Duration>, Failed> {
        let recorded = &self.events[..std::mem::take(&mut self.recorded)];
        if let Some(last) = recorded.last() {
            // SAFETY: it lives.
            check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(*last) })?;
        }
        let lap = |pair: &[sys::CUevent]| {
            let mut milliseconds = 0.0;
            // SAFETY: both live and were recorded.
            let status = unsafe { sys::cuEventElapsedTime(&mut milliseconds, pair[0], pair[1]) };
            check("cuEventElapsedTime", status)?;
            Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
        };
        recorded.windows(2).map(lap).collect()
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        for event in &self.events {
            // What a lost context no longer has cannot be destroyed, and need not be.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(*event) };
        }
    }
}
