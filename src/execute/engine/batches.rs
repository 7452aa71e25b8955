//! Moves batches, and data that is held in memory, to where the program reads them.

use std::ops::Range;
use std::time::Instant;

use super::Engine;
use compile::{BatchBuffer, HostBuffers};
use data::{Batch, Part};
use device::{DeviceError, HostSlice, Queue, Region};
use memory::Failure;
use ops::ValueId;

/// The batch that the program reads.
#[derive(Default)]
pub(super) struct CurrentBatch {
    /// Its slot in the host buffers.
    slot: usize,
    /// Its half (0 or 1) of the device's double buffer. Used only if batches are prefetched.
    stage: usize,
    /// Slot of the batch that was, or is being, copied to the other half.
    ahead: Option<usize>,
}

impl<'a> Engine<'a> {
    /// Selects the batch in a slot of the host buffers for a step.
    pub(super) fn begin_batch(&mut self, slot: usize) -> Result<(), DeviceError> {
        self.current.slot = slot;
        if self.current.ahead.take() == Some(slot) {
            self.current.stage = 1 - self.current.stage;
            self.counts.batches_ahead += 1;
            return Ok(());
        }
        self.upload_and_wait(slot)
    }

    /// Uploads the batch in a slot of the host buffers and waits for it.
    fn upload_and_wait(&mut self, slot: usize) -> Result<(), DeviceError> {
        if self.program.host_buffers.staged.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        self.upload_batch(slot, self.current.stage)?;
        self.manager.backing.device.synchronize()?;
        if let Some(timeline) = &mut self.timeline {
            timeline.add_wait_for_batch(began.elapsed());
        }
        Ok(())
    }

    /// Enqueues the upload of the next step's batch while this step computes, if batches are prefetched. Its
    /// destination is free: the step that read it has ended.
    pub(super) fn prefetch_batch(&mut self, next: Option<usize>) -> Result<(), DeviceError> {
        let Some(next) = next.filter(|_| !self.program.host_buffers.staged.is_empty()) else { return Ok(()) };
        self.current.ahead = Some(next);
        self.upload_batch(next, 1 - self.current.stage)
    }

    /// Selects the batch in a slot of the host buffers for an evaluation. The slot is that of the last step.
    pub(super) fn begin_evaluation(&mut self, slot: usize) -> Result<(), Failure> {
        self.current.slot = slot;
        if self.program.host_buffers.evaluation.is_empty() {
            self.upload_and_wait(slot)?;
        }
        self.synchronize()
    }

    /// The next samples of the current batch, behind `seen` samples. `of` is the buffer of all batches.
    pub(super) fn micro_batch_region(
        &self,
        of: Region,
        batches: BatchBuffer,
        seen: usize,
        next: usize,
    ) -> Region {
        let samples = self.program.batch_samples(batches);
        let batch = match batches {
            BatchBuffer::Host => self.current.slot,
            BatchBuffer::Staged => self.current.stage,
            BatchBuffer::Evaluation => 0,
        };
        let sample = of.bytes / (samples * self.program.batch_slots(batches)) as u64;
        let offset = of.offset + (batch * samples + seen) as u64 * sample;
        Region { offset, bytes: next as u64 * sample, ..of }
    }

    /// Copies samples. Where they are shorter, the padding at the end of each is left out.
    pub(super) fn copy_samples(
        &mut self,
        queue: Queue,
        from: Region,
        to: Region,
        samples: usize,
    ) -> Result<(), DeviceError> {
        if from.bytes == to.bytes {
            return self.manager.backing.device.copy(queue, from, to);
        }
        let [stride, bytes] = [from.bytes, to.bytes].map(|all| all / samples as u64);
        let part = |of: Region, offset: u64| Region { offset: of.offset + offset, bytes, ..of };
        (0..samples as u64).try_for_each(|sample| {
            self.manager.backing.device.copy(queue, part(from, sample * stride), part(to, sample * bytes))
        })
    }

    /// Writes a batch to the next slot of the host buffers. Returns the slot.
    pub(super) fn write_batch(&mut self, batch: &Batch) -> Result<usize, Failure> {
        let slot = (self.current.slot + 1) % self.program.slots;
        self.write_parts(batch, BatchBuffer::Host, slot)?;
        Ok(slot)
    }

    /// Writes an evaluation batch to where evaluations read it. Returns the slot of the host buffers.
    pub(super) fn write_evaluation_batch(&mut self, batch: &Batch) -> Result<usize, Failure> {
        if self.program.host_buffers.evaluation.is_empty() {
            return self.write_batch(batch);
        }
        self.write_parts(batch, BatchBuffer::Evaluation, 0)?;
        Ok(self.current.slot)
    }

    fn write_parts(&mut self, batch: &Batch, buffer: BatchBuffer, slot: usize) -> Result<(), Failure> {
        for &id in self.parts(buffer) {
            let name = self.program.value(id).name;
            let filled = batch.part(name).unwrap_or_else(|| panic!("the batch has no part `{name}`"));
            let samples = 0..self.program.batch_samples(buffer);
            let region = self.samples_of(buffer, slot, samples, &filled.part);
            assert_eq!(filled.bytes.len() as u64, region.bytes, "samples of the batch's `{name}`");
            self.manager.backing.device.write(region, &filled.bytes)?;
        }
        Ok(())
    }

    /// Enqueues copies of the whole batch in a slot of the host buffers to a half of the device's double buffer.
    fn upload_batch(&mut self, slot: usize, stage: usize) -> Result<(), DeviceError> {
        let HostBuffers { batch, staged, .. } = &self.program.host_buffers;
        for (&from, &to) in batch.iter().zip(staged) {
            let [from, to] = [(from, slot), (to, stage)].map(|(id, batch)| {
                let Region { buffer, offset, bytes } = self.manager.tensor(id).region();
                let batches = self
                    .program
                    .value(id)
                    .shape_source
                    .batch_buffer()
                    .expect("a batch part is a buffer of whole batches");
                let bytes = bytes / self.program.batch_slots(batches) as u64;
                Region { buffer, offset: offset + batch as u64 * bytes, bytes }
            });
            self.manager.backing.device.copy(Queue::Copy, from, to)?;
        }
        Ok(())
    }

    /// Lends the memory of one part of some samples of a batch, in a slot of the host buffers, to the loader.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn lend(
        &mut self,
        slot: usize,
        samples: Range<usize>,
        part: &Part,
    ) -> Result<HostSlice, DeviceError> {
        let region = self.samples_of(BatchBuffer::Host, slot, samples, part);
        self.manager.backing.device.lend(region)
    }

    /// Lends the memory of one part of an evaluation batch that has its own size to the loader.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn lend_evaluation(&mut self, part: &Part) -> Result<HostSlice, DeviceError> {
        let samples = 0..self.program.evaluation_samples;
        let region = self.samples_of(BatchBuffer::Evaluation, 0, samples, part);
        self.manager.backing.device.lend(region)
    }

    /// Lends the memory of a part of the data that is held in host memory.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn lend_held(&mut self, part: &Part) -> Result<HostSlice, DeviceError> {
        let region = self.held(part);
        self.manager.backing.device.lend(region)
    }

    /// Writes a piece of a part of the data that is held in device memory, `begins` bytes behind the part's start.
    ///
    /// # Errors
    /// A device that fails.
    pub fn put_held(&mut self, part: &Part, begins: u64, piece: &[u8]) -> Result<(), DeviceError> {
        let Region { buffer, offset, .. } = self.held(part);
        let region = Region { buffer, offset: offset + begins, bytes: piece.len() as u64 };
        self.manager.backing.device.write(region, piece)
    }

    /// Panics if the program does not hold the part.
    fn held(&self, part: &Part) -> Region {
        let mut held = self.program.host_buffers.held.iter();
        let found = held.find(|&&id| self.program.value(id).name == part.name);
        let found = *found.unwrap_or_else(|| panic!("the program does not hold `{}`", part.name));
        self.manager.tensor(found).region()
    }

    /// The parts of whole batches in a buffer.
    fn parts(&self, buffer: BatchBuffer) -> &'a [ValueId] {
        let HostBuffers { batch, staged, evaluation, .. } = &self.program.host_buffers;
        match buffer {
            BatchBuffer::Host => batch,
            BatchBuffer::Staged => staged,
            BatchBuffer::Evaluation => evaluation,
        }
    }

    /// The memory of one part of some samples of the batch in a slot of a buffer.
    ///
    /// Panics if the program has no such part.
    fn samples_of(&self, buffer: BatchBuffer, slot: usize, samples: Range<usize>, part: &Part) -> Region {
        let (all, slots) = (self.program.batch_samples(buffer), self.program.batch_slots(buffer));
        let found = self.parts(buffer).iter().find(|&&id| self.program.value(id).name == part.name);
        let tensor = found.map(|&id| self.manager.tensor(id));
        let tensor = tensor.unwrap_or_else(|| panic!("the program has no `{}`", part.name));
        assert_eq!(tensor.ty, part.of_samples(all * slots), "the type of the batch's `{}`", part.name);
        let sample = part.ty.bytes();
        let offset = tensor.offset + (slot * all + samples.start) as u64 * sample;
        Region { buffer: tensor.buffer, offset, bytes: samples.len() as u64 * sample }
    }
}
