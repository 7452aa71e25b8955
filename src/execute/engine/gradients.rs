//! A step in two halves, gradients and update, so that gradients can be read in between.

use std::collections::HashMap;

use super::{Engine, StepReport};
use compile::{Action, Results, SectionKind};
use data::Batch;
use memory::Failure;
use ops::{StepCounts, ValueId};

impl Engine<'_> {
    /// The loss scale until the next update. `None` without one.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn loss_scale(&mut self) -> Result<Option<f32>, Failure> {
        self.program.loss_scaling.map(|scaling| self.read_number(scaling.scale)).transpose()
    }

    /// The first half of a step: the gradients of the whole batch. They are not clipped yet, nor applied unless the
    /// program updates in the backward pass.
    pub(crate) fn gradients(&mut self, batch: &Batch, numbers: &[f32]) -> Result<(), Failure> {
        let slot = self.write_batch(batch)?;
        self.gradients_on(slot, None, numbers)
    }

    /// The gradients of the batch in a slot of the host buffers, while the `next` one is uploaded.
    pub(super) fn gradients_on(
        &mut self,
        slot: usize,
        next: Option<usize>,
        numbers: &[f32],
    ) -> Result<(), Failure> {
        self.begin_batch(slot)?;
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let region = self.manager.tensor(self.program.host_buffers.step_scalars).region();
        // Waits for all queues, so that the batch has been uploaded.
        self.manager.backing.device.write(region, &numbers)?;
        self.prefetch_batch(next)?;
        let program = self.longest;
        let step = self.counts.steps + 1;
        let (mut seen, mut micro_batch) = (0, 0);
        for section in program.step().take_while(|section| section.kind != SectionKind::Update) {
            for iteration in 1..=section.repeat_count {
                self.select(program.of_micro_batch(section.kind, self.counts.steps as usize, micro_batch));
                let is_last = iteration == section.repeat_count;
                self.run_section(section.kind, seen, is_last).map_err(|failure| failure.in_step(step))?;
                seen += section.samples;
                micro_batch += 1;
                self.counts.micro_batches += u64::from(section.samples > 0);
            }
        }
        self.select(program);
        Ok(())
    }

    /// The second half of a step: clips and applies the gradients.
    pub(crate) fn update(&mut self) -> Result<StepReport, Failure> {
        let step = self.counts.steps + 1;
        self.run_section(SectionKind::Update, 0, true).map_err(|failure| failure.in_step(step))?;
        self.counts.steps = step;
        let Results { loss, norm, scale, counts, .. } = self.program.host_buffers.results;
        if let Some(counts) = counts {
            let counts = StepCounts::from_array(self.read_numbers(counts)?);
            self.counts.skipped_steps = counts.skipped as u64;
        }
        let mut optional_number = |id: Option<ValueId>| id.map(|id| self.read_number(id)).transpose();
        let (gradient_norm, loss_scale) = (optional_number(norm)?, optional_number(scale)?);
        let mut loss = [f64::from(self.read_number(loss)?)];
        self.device().sum_over_ranks(&mut loss)?;
        Ok(StepReport { loss: loss[0] as f32, gradient_norm, loss_scale })
    }

    /// From now on, keeps copies of the gradients that are applied in the backward pass, for
    /// [`gradient`](Self::gradient).
    pub(crate) fn keep_applied_gradients(&mut self) {
        self.applied_gradients = Some(HashMap::new());
    }

    /// Passes the elements of a gradient to `take`, between the halves of a step.
    ///
    /// # Errors
    /// A device that fails, or an error of `take`.
    pub(crate) fn gradient<E: From<Failure>>(
        &mut self,
        id: ValueId,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let value = self.program.value(id);
        match self.applied_gradients.as_ref().and_then(|applied| applied.get(&value.storage)) {
            Some(bytes) => take(&bytes[value.offset as usize..][..value.ty.bytes() as usize]),
            None => self.read(id, take),
        }
    }

    /// Copies the gradients that an update is about to apply, if copies are kept.
    pub(super) fn keep_applied(&mut self, action: &Action) -> Result<(), Failure> {
        let Action::Launch { op, inputs, .. } = action else { return Ok(()) };
        let Some(update) = op.as_update().filter(|_| self.applied_gradients.is_some()) else { return Ok(()) };
        self.synchronize()?;
        let gradients = inputs[update.gradients_input()];
        let region = self.manager.tensor(gradients).region();
        let mut copy = vec![0; region.bytes as usize];
        self.manager.backing.device.read(region, &mut copy)?;
        let bucket = self.program.storage(self.program.original(gradients));
        self.applied_gradients.get_or_insert_default().insert(bucket, copy);
        Ok(())
    }
}
