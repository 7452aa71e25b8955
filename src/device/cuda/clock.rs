//! The compute queue's own clock: events with the time at which the card came to them.

use std::time::Duration;

use cudarc::driver::sys::{self, CUevent_flags_enum as EventFlags, CUresult};
use libloading::os::unix::{Library, Symbol};

use super::driver::check;
use super::errors::Failed;

/// `cuEventElapsedTime`, which the bindings know only as drivers from 12.8 on have it.
type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;

/// Events of a context, used again and again. Dropped before it.
pub(super) struct Clock {
    elapsed: Symbol<ElapsedTime>,
    events: Vec<sys::CUevent>,
    /// How many of them were recorded since the clock was last read.
    recorded: usize,
}

impl Clock {
    /// # Errors
    /// The driver, which was there a moment ago, has no such function.
    pub(super) fn new() -> Result<Clock, Failed> {
        let name = "cuEventElapsedTime";
        // SAFETY: the driver is loaded already, so that nothing is run here; the function's type is the
        // documentation's.
        let found = unsafe { Library::new("libcuda.so.1").and_then(|library| library.get(name.as_bytes())) };
        let elapsed = found.map_err(|error| Failed {
            call: name.to_owned(),
            name: error.to_string(),
            code: 0,
            lost: false,
        })?;
        Ok(Clock { elapsed, events: Vec::new(), recorded: 0 })
    }

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
            let status = unsafe { (self.elapsed)(&mut milliseconds, pair[0], pair[1]) };
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
