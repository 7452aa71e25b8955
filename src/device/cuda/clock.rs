//! A stream's clock: events with the card's timestamps.

use std::time::Duration;

use super::calls::driver::{self as sys, CUevent_flags_enum as EventFlags};
use super::driver::check;
use super::errors::CallError;

/// Reusable events of a context. Dropped before it.
#[derive(Default)]
pub(super) struct Clock {
    events: Vec<sys::CUevent>,
    /// Number of events recorded since the last `laps`.
    recorded: usize,
}

impl Clock {
    pub(super) fn lap(&mut self, stream: sys::CUstream) -> Result<(), CallError> {
        if self.recorded == self.events.len() {
            let mut event = std::ptr::null_mut();
            let flags = EventFlags::CU_EVENT_DEFAULT as u32;
            // SAFETY: a context is current.
            check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
            self.events.push(event);
        }
        // SAFETY: both are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.events[self.recorded], stream) })?;
        self.recorded += 1;
        Ok(())
    }

    /// The times between consecutive events, by the card's clock.
    pub(super) fn laps(&mut self) -> Result<Vec<Duration>, CallError> {
        let recorded = &self.events[..std::mem::take(&mut self.recorded)];
        if let Some(last) = recorded.last() {
            // SAFETY: the event is live.
            check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(*last) })?;
        }
        let lap = |pair: &[sys::CUevent]| {
            let mut milliseconds = 0.0;
            // SAFETY: both are live and recorded.
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
            // A lost context has already destroyed it; errors are ignored.
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(*event) };
        }
    }
}
