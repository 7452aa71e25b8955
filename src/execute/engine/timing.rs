//! What instructions took, by the host's clock or the device's own.

use std::time::Duration;

use super::Engine;
use crate::timeline::Timeline;
use device::DeviceError;
use memory::Failure;

impl Engine<'_> {
    /// Records each instruction of the sections that the timeline wants.
    pub fn record_timeline(&mut self, timeline: Timeline) {
        self.timeline = Some(timeline);
    }

    /// From now on, steps and evaluations are recorded.
    ///
    /// # Errors
    /// A device that fails.
    pub fn record_steps(&mut self) -> Result<(), DeviceError> {
        if let Some(timeline) = &mut self.timeline {
            timeline.want_steps(self.program);
        }
        // What was copied until now is not compared with what is waited from now on.
        self.manager.backing.device.copied().map(drop)
    }

    /// Of what was recorded: the share of the time of copies in which nothing waited for them, where they are timed.
    ///
    /// # Errors
    /// A device that fails.
    pub fn copies_hidden(&mut self) -> Result<Option<f64>, DeviceError> {
        let copied = self.manager.backing.device.copied()?.filter(|copied| !copied.is_zero());
        let clocked = self.has_clock();
        let waited = self.timeline.as_ref().map(|timeline| timeline.waited(self.program, clocked));
        let hidden = |(copied, waited): (Duration, Duration)| {
            1.0 - (waited.as_secs_f64() / copied.as_secs_f64()).min(1.0)
        };
        Ok(copied.zip(waited).map(hidden))
    }

    /// Whether instructions can be timed only by the device's own clock, which takes time of its own.
    pub fn has_clock(&self) -> bool {
        self.manager.backing.device.has_clock()
    }

    pub fn take_timeline(&mut self) -> Option<Timeline> {
        self.timeline.take()
    }

    /// What the device's clock says of the instructions of a section that has just been gone through.
    pub(super) fn read_clock(&mut self) -> Result<(), Failure> {
        let laps = self.manager.backing.device.laps()?;
        for ((section, index), took) in self.timed.drain(..).zip(laps) {
            if let Some(timeline) = &mut self.timeline {
                timeline.add(section, index, took);
            }
        }
        Ok(())
    }
}
