//! BatchBuffer, and data that is held: how they come to where the program expects them.

use std::ops::Range;
use std::time::Instant;

use super::Engine;
use compile::{BatchBuffer, HostBuffers, Program};
use data::{Batch, Part};
use device::{DeviceError, Lent, Queue, Region};
use memory::Failure;

/// Which batch is worked on.
#[derive(Default)]
pub(super) struct At {
    /// Where it lies among the host buffers'.
    slot: usize,
    /// Where batches come to the device ahead: where it lies there.
    stage: usize,
    /// Which of the host buffers' lies, or will, in the other place there.
    ahead: Option<usize>,
}

impl Engine<'_> {
    /// A step begins on the batch in a slot of the host_buffers.
    pub(super) fn begin_batch(&mut self, slot: usize) -> Result<(), DeviceError> {
        self.at.slot = slot;
        if self.at.ahead.take() == Some(slot) {
            self.at.stage = 1 - self.at.stage;
            self.counts.batches_ahead += 1;
            return Ok(());
        }
        self.bring_now(slot)
    }

    /// Brings the batch in a slot of the host buffers to the device before anything else is done.
    fn bring_now(&mut self, slot: usize) -> Result<(), DeviceError> {
        if self.program.host_buffers.staged.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        self.bring(slot, self.at.stage)?;
        self.manager.backing.device.synchronize()?;
        if let Some(timeline) = &mut self.timeline {
            timeline.add_wait_for_batch(began.elapsed());
        }
        Ok(())
    }

    /// Brings the batch of the next step to the device while this one is worked on, where batches come ahead. Where it goes,
    /// nothing works any more since the step before has ended.
    pub(super) fn bring_ahead(&mut self, next: Option<usize>) -> Result<(), DeviceError> {
        let Some(next) = next.filter(|_| !self.program.host_buffers.staged.is_empty()) else { return Ok(()) };
        self.at.ahead = Some(next);
        self.bring(next, 1 - self.at.stage)
    }

    /// An evaluation begins on the batch in a slot of the host_buffers, that of the step before.
    pub(super) fn begin_evaluation(&mut self, slot: usize) -> Result<(), Failure> {
        self.at.slot = slot;
        self.bring_now(slot)?;
        self.synchronize()
    }

    /// Of whole batches: so many bytes of the one that is worked on, behind the samples that were seen.
    pub(super) fn seen_of(&self, of: Region, batches: BatchBuffer, seen: usize, bytes: u64) -> Region {
        let samples = self.program.samples;
        let batch = match batches {
            BatchBuffer::Host => self.at.slot,
            BatchBuffer::Staged => self.at.stage,
        };
        let sample = of.bytes / (samples * self.program.batch_slots(batches)) as u64;
        Region { offset: of.offset + (batch * samples + seen) as u64 * sample, bytes, ..of }
    }

    /// In the slot of the host buffers behind the last one. Returns which that is.
    pub(super) fn put_batch(&mut self, batch: &Batch) -> Result<usize, Failure> {
        let slot = (self.at.slot + 1) % self.program.slots;
        for &id in &self.program.host_buffers.batch {
            let name = self.program.value(id).name;
            let filled = batch.part(name).unwrap_or_else(|| panic!("the batch has no part `{name}`"));
            let region = self.samples_of(slot, 0..self.program.samples, &filled.part);
            assert_eq!(filled.bytes.len() as u64, region.bytes, "samples of the batch's `{name}`");
            self.manager.backing.device.write(region, &filled.bytes)?;
        }
        Ok(slot)
    }

    /// Brings the batch in a slot of the host buffers to the device, on the queue of copies, where batches come there as a whole.
    fn bring(&mut self, slot: usize, stage: usize) -> Result<(), DeviceError> {
        let HostBuffers { batch, staged, .. } = &self.program.host_buffers;
        for (&from, &to) in batch.iter().zip(staged) {
            let [from, to] = [(from, slot), (to, stage)].map(|(id, batch)| {
                let Region { buffer, offset, bytes } = self.manager.tensor(id).region();
                let batches =
                    self.program.value(id).shape_source.batch_buffer().expect("it is of whole batches");
                let bytes = bytes / self.program.batch_slots(batches) as u64;
                Region { buffer, offset: offset + batch as u64 * bytes, bytes }
            });
            self.manager.backing.device.copy(Queue::Copy, from, to)?;
        }
        Ok(())
    }

    /// Lends the memory of a part of some samples of the batch in a slot of the host buffers to who assembles it.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn lend(
        &mut self,
        slot: usize,
        samples: Range<usize>,
        part: &Part,
    ) -> Result<Lent, DeviceError> {
        let region = self.samples_of(slot, samples, part);
        self.manager.backing.device.lend(region)
    }

    /// Lends the memory of the row of tokens that the host holds.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn lend_row(&mut self) -> Result<Lent, DeviceError> {
        let region = self.row();
        self.manager.backing.device.lend(region)
    }

    /// Puts a piece of the row of tokens that the device holds where it begins, so many bytes from the front.
    ///
    /// # Errors
    /// A device that fails.
    pub fn put_row(&mut self, begins: u64, piece: &[u8]) -> Result<(), DeviceError> {
        let Region { buffer, offset, .. } = self.row();
        let part = Region { buffer, offset: offset + begins, bytes: piece.len() as u64 };
        self.manager.backing.device.write(part, piece)
    }

    fn row(&self) -> Region {
        let row = self.program.host_buffers.token_row.expect("the program holds a row");
        self.manager.tensor(row).region()
    }

    /// Where a part of some samples of the batch in a slot of the host buffers lies.
    ///
    /// Panics if the program has no such part.
    fn samples_of(&self, slot: usize, samples: Range<usize>, part: &Part) -> Region {
        let Program { host_buffers, samples: all, slots, .. } = self.program;
        let found = host_buffers.batch.iter().find(|&&id| self.program.value(id).name == part.name);
        let tensor = found.map(|&id| self.manager.tensor(id));
        let tensor = tensor.unwrap_or_else(|| panic!("the program has no `{}`", part.name));
        assert_eq!(tensor.ty, part.of_samples(all * slots), "the type of the batch's `{}`", part.name);
        let sample = part.ty.bytes();
        let offset = tensor.offset + (slot * all + samples.start) as u64 * sample;
        Region { buffer: tensor.buffer, offset, bytes: samples.len() as u64 * sample }
    }
}
