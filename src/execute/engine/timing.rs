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
        // Resets the time of copies: copies until now have no recorded waits to compare with.
        self.manager.backing.device.copied().map(drop)
    }

    /// The share of the recorded copy time that computation did not wait for. `None` if copies are not timed.
    ///
    /// # Errors
    /// A device that fails.
    pub fn copies_hidden(&mut self) -> Result<Option<f64>, DeviceError> {
        let copied = self.manager.backing.device.copied()?.filter(|copied| !copied.is_zero());
        let clocked = self.has_clock();
        let waited = self.timeline.as_ref().map(|timeline| timeline.copy_wait(self.program, clocked));
        let hidden = |(copied, waited): (Duration, Duration)| {
            1.0 - (waited.as_secs_f64() / copied.as_secs_f64()).min(1.0)
        };
        Ok(copied.zip(waited).map(hidden))
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
