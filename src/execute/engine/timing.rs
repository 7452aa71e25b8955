//! Times of instructions, by the host's clock or the device's own.

use std::time::Duration;

use super::Engine;
use crate::logs::Timeline;
use device::DeviceError;
use memory::Failure;

impl Engine<'_> {
    /// Sets the timeline that instructions are recorded in.
    pub(crate) fn record_timeline(&mut self, timeline: Timeline) {
        self.timeline = Some(timeline);
    }

    /// From now on, records steps and evaluations.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn record_steps(&mut self) -> Result<(), DeviceError> {
        if let Some(timeline) = &mut self.timeline {
            timeline.record_steps(self.program);
        }
        // Resets the times of copies and exchanges: those until now have no recorded waits to compare with.
        self.manager.backing.device.copied()?;
        self.manager.backing.device.exchanged().map(drop)
    }

    /// The share of the recorded copy time that computation did not wait for. `None` if copies are not timed.
    ///
    /// # Errors
    /// A device that fails.
    pub fn copies_hidden(&mut self) -> Result<Option<f64>, DeviceError> {
        let copied = self.manager.backing.device.copied()?;
        let clocked = self.has_clock();
        let waited = self.timeline.as_ref().map(|timeline| timeline.copy_wait(self.program, clocked));
        Ok(copied.zip(waited).and_then(hidden))
    }

    /// The time of exchanges with other ranks since steps are recorded, waits for these ranks included, and the share that
    /// computation did not wait for. `None` if exchanges are not timed.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn exchanges(&mut self) -> Result<Option<(Duration, Option<f64>)>, DeviceError> {
        let exchanged = self.manager.backing.device.exchanged()?;
        let waited = self.timeline.as_ref().map(|timeline| timeline.exchange_wait(self.program));
        Ok(exchanged.map(|exchanged| (exchanged, waited.and_then(|waited| hidden((exchanged, waited))))))
    }

    /// Whether instructions are timed by the device's own clock, which adds overhead to the step.
    pub(crate) fn has_clock(&self) -> bool {
        self.manager.backing.device.has_clock()
    }

    pub(crate) fn take_timeline(&mut self) -> Option<Timeline> {
        self.timeline.take()
    }

    /// Adds the laps of the device's clock to the timeline, after a section.
    pub(super) fn read_clock(&mut self) -> Result<(), Failure> {
        let laps = self.manager.backing.device.laps()?;
        for ((section, index), took) in self.pending_laps.drain(..).zip(laps) {
            if let Some(timeline) = &mut self.timeline {
                timeline.add_time(section, index, took);
            }
        }
        Ok(())
    }
}

/// The share of work that nothing waited for. `None` if there was no work.
fn hidden((worked, waited): (Duration, Duration)) -> Option<f64> {
    (!worked.is_zero()).then(|| 1.0 - (waited.as_secs_f64() / worked.as_secs_f64()).min(1.0))
}
