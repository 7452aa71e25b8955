//! Executes a compiled program on a device, one instruction after the other.

mod backing;
mod batches;
mod digest;
mod evaluated;
mod gradients;
mod last_uses;
mod parameters;
mod timing;
mod unchanged;
mod values;

pub(crate) use evaluated::Evaluated;
pub(crate) use unchanged::Unchanged;

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use self::backing::DeviceBacking;
use self::batches::CurrentBatch;
use self::last_uses::LastUses;
use crate::logs::Timeline;
use crate::metrics::Counts;
use compile::{Action, FirstIterations, Program, Results, SectionKind, When};
use data::{Batch, StoredParameters};
use device::{CapturedGraph, Device, DeviceError, Ledger, Pool, Tensor};
#[cfg(test)]
use memory::{Allocator, CacheStats};
use memory::{Failure, MemoryManager};
use ops::ValueId;

/// The results of one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    pub loss: f32,
    /// Norm of the gradients before clipping. `None` without clipping and without a loss scale; not finite if the step
    /// was skipped.
    pub gradient_norm: Option<f32>,
    /// Loss scale of the next step. `None` without one.
    pub loss_scale: Option<f32>,
}

/// A program on a device, ready to take steps.
pub struct Engine<'a> {
    /// The program of the micro-batch that is executed; between steps the run's, which is that of the longest.
    program: &'a Program,
    longest: &'a Program,
    /// Batches of the current evaluation so far.
    evaluated_batches: usize,
    manager: MemoryManager<'a, DeviceBacking<'a>>,
    /// The checkpoint tensors that parameters with a stored initial value are loaded from.
    weights: Option<&'a StoredParameters>,
    counts: Counts,
    last_uses: LastUses,
    current: CurrentBatch,
    /// Whether memory is overwritten when it is freed, to expose use after free.
    poison: bool,
    /// Executions of each section so far.
    executions: Vec<u64>,
    first_iterations: FirstIterations,
    /// Whether the current iteration of a section is the last of the step.
    is_last: bool,
    /// By section and segment: the CUDA graph, once it is captured.
    graphs: Vec<Vec<Option<CapturedGraph>>>,
    timeline: Option<Timeline>,
    /// Section and instruction of each lap of the device's clock that has not been read yet.
    pending_laps: Vec<(usize, usize)>,
    /// Copies of the gradients that were applied and freed in the backward pass, by bucket, for dumps. `None` if no
    /// copies are kept.
    applied_gradients: Option<HashMap<ValueId, Vec<u8>>>,
}

impl<'a> Engine<'a> {
    /// Creates an engine and reserves the memory that the program requests up front.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn new(
        program: &'a Program,
        device: &'a mut dyn Device,
        poison: bool,
    ) -> Result<Engine<'a>, Failure> {
        let target = device.target().clone();
        let manager = MemoryManager::new(program, &target, DeviceBacking::new(program, device))?;
        Ok(Engine::with_manager(program, manager, poison))
    }

    /// An engine with a given allocator.
    #[cfg(test)]
    pub(crate) fn with_allocator(
        program: &'a Program,
        device: &'a mut dyn Device,
        allocator: Box<dyn Allocator<'a> + 'a>,
    ) -> Result<Engine<'a>, Failure> {
        let target = device.target().clone();
        let backing = DeviceBacking::new(program, device);
        let manager = MemoryManager::with_allocator(program, &target, backing, allocator)?;
        Ok(Engine::with_manager(program, manager, true))
    }

    fn with_manager(
        program: &'a Program,
        manager: MemoryManager<'a, DeviceBacking<'a>>,
        poison: bool,
    ) -> Engine<'a> {
        Engine {
            program,
            longest: program,
            evaluated_batches: 0,
            manager,
            weights: None,
            counts: Counts::default(),
            last_uses: LastUses::new(program),
            current: CurrentBatch::default(),
            poison,
            executions: vec![0; program.sections.len()],
            first_iterations: FirstIterations::new(program),
            is_last: true,
            graphs: program.sections.iter().map(|section| vec![None; section.capture_ranges.len()]).collect(),
            timeline: None,
            pending_laps: Vec::new(),
            applied_gradients: None,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        self.manager.ledger()
    }

    pub fn counts(&self) -> Counts {
        let Counts { requests_in_evaluation, requests_in_first_iteration, cache_in_evaluation, .. } =
            self.counts;
        let requests = self.manager.backing.requests - requests_in_evaluation - requests_in_first_iteration;
        let cache = self.manager.cache_stats().since(&cache_in_evaluation);
        let collected_bytes = Pool::HOMES.map(|device| self.manager.collected_bytes(device));
        let leaked_bytes = self.manager.leaked().total();
        Counts { requests, cache, leaked_bytes, collected_bytes, ..self.counts }
    }

    /// Counters of the caching allocator, evaluations included.
    #[cfg(test)]
    pub(crate) fn cache_stats(&self) -> CacheStats {
        self.manager.cache_stats()
    }

    /// The device that executes the program.
    pub fn device(&mut self) -> &mut dyn Device {
        self.manager.backing.device
    }

    /// Initialises parameters and optimizer states, except those that the first step initialises lazily.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn start(&mut self) -> Result<(), Failure> {
        self.run_section(SectionKind::Start, 0, true)?;
        self.synchronize()
    }

    /// Executes one optimizer step on a whole batch. `numbers` are the optimizer's scalars of this step, such as the
    /// learning rate.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn step(&mut self, batch: &Batch, numbers: &[f32]) -> Result<StepReport, Failure> {
        let slot = self.write_batch(batch)?;
        self.step_on(slot, None, numbers)
    }

    /// Executes one optimizer step on the batch in a slot of the host buffers. `next` is the slot of the next step's
    /// batch, if batches are prefetched and that batch is complete: its upload overlaps this step.
    ///
    /// # Errors
    /// As for `step`.
    pub(crate) fn step_on(
        &mut self,
        slot: usize,
        next: Option<usize>,
        numbers: &[f32],
    ) -> Result<StepReport, Failure> {
        self.gradients_on(slot, next, numbers)?;
        self.update()
    }

    /// Evaluates one batch. Returns its loss, summed over its samples on all ranks.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn evaluate(&mut self, batch: &Batch) -> Result<f64, Failure> {
        let loss = self.evaluate_batch(batch)?;
        self.finish_evaluation()?;
        Ok(self.over_ranks(Evaluated { loss, accuracy: None })?.loss)
    }

    /// Evaluates one of several batches. Call `finish_evaluation` after the last.
    ///
    /// # Errors
    /// As for `evaluate`.
    pub(crate) fn evaluate_batch(&mut self, batch: &Batch) -> Result<f64, Failure> {
        let slot = self.write_evaluation_batch(batch)?;
        Ok(self.evaluate_on(slot)?.loss)
    }

    /// Ends an evaluation: frees the collected outputs.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn finish_evaluation(&mut self) -> Result<(), Failure> {
        self.counts.evaluations += 1;
        self.evaluated_batches = 0;
        Ok(self.manager.release_collected()?)
    }

    /// The figures of an evaluation, summed over all ranks.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn over_ranks(&mut self, own: Evaluated) -> Result<Evaluated, Failure> {
        let mut sums = [own.loss, own.accuracy.unwrap_or_default()];
        self.device().sum_over_ranks(&mut sums)?;
        Ok(Evaluated { loss: sums[0], accuracy: own.accuracy.map(|_| sums[1]) })
    }

    /// Evaluates the batch in a slot of the host buffers. If evaluation has its own batch size, evaluates the batch in
    /// the evaluation buffer instead. Call `finish_evaluation` after the last batch.
    ///
    /// # Errors
    /// As for `evaluate`.
    pub(crate) fn evaluate_on(&mut self, slot: usize) -> Result<Evaluated, Failure> {
        self.run_lazy_init()?;
        self.begin_evaluation(slot)?;
        let program = self.longest;
        let (before, cache_before) = (self.manager.backing.requests, self.manager.cache_stats());
        let (mut seen, mut micro_batch, mut sums) = (0, 0, Evaluated::default());
        for section in program.evaluation() {
            for _ in 0..section.repeat_count {
                self.select(program.of_micro_batch(section.kind, self.evaluated_batches, micro_batch));
                self.run_section(section.kind, seen, true)?;
                seen += section.samples;
                micro_batch += 1;
                self.counts.evaluation_passes += 1;
                let samples = match section.sums_losses() {
                    true => program.evaluation_batch_size,
                    false => section.samples,
                };
                sums += self.read_evaluated()?.times(samples as f64);
            }
        }
        self.select(program);
        self.evaluated_batches += 1;
        self.counts.requests_in_evaluation += self.manager.backing.requests - before;
        self.counts.cache_in_evaluation += self.manager.cache_stats().since(&cache_before);
        Ok(sums)
    }

    /// The loss and the accuracy of the micro-batch.
    fn read_evaluated(&mut self) -> Result<Evaluated, Failure> {
        let Results { loss, evaluated, .. } = self.program.host_buffers.results;
        let Some(evaluated) = evaluated else {
            return Ok(Evaluated { loss: f64::from(self.read_number(loss)?), accuracy: None });
        };
        let [loss, accuracy] = self.read_numbers(evaluated)?.map(f64::from);
        Ok(Evaluated { loss, accuracy: Some(accuracy) })
    }

    /// From now on, executes the program of a micro-batch.
    fn select(&mut self, program: &'a Program) {
        self.program = program;
        self.manager.select(program);
    }

    /// Waits until the device has finished all enqueued work.
    ///
    /// # Errors
    /// A device that fails.
    pub(crate) fn synchronize(&mut self) -> Result<(), Failure> {
        Ok(self.manager.backing.device.synchronize()?)
    }

    /// Waits for the device and frees all memory.
    ///
    /// # Errors
    /// A device that fails.
    pub fn close(self) -> Result<(), Failure> {
        self.manager.backing.device.synchronize()?;
        self.manager.close()
    }

    /// Executes a section once. `seen` is the number of samples of this batch that earlier micro-batches have
    /// processed; `is_last`: whether the section's iterations in this step end with this one.
    fn run_section(&mut self, kind: SectionKind, seen: usize, is_last: bool) -> Result<(), Failure> {
        let found = self.program.sections.iter().position(|section| section.kind == kind);
        let number = found.expect("the program has every section that is executed");
        let section = &self.program.sections[number];
        let clocked = self.has_clock() && self.timeline.as_ref().is_some_and(|t| t.is_recording(number));
        if clocked {
            self.manager.backing.device.lap()?;
        }
        // The first execution is not captured, because kernels and libraries initialise themselves in it. While a
        // section is timed or gradients are copied, no graph is replayed: both happen between two instructions.
        if let Some(timeline) = &mut self.timeline {
            timeline.record_length(number, self.program);
        }
        let captures = self.executions[number] > 0 && !clocked && self.applied_gradients.is_none();
        self.executions[number] += 1;
        self.is_last = is_last;
        let mut next = 0;
        for (index, segment) in section.capture_ranges.iter().enumerate().filter(|_| captures) {
            self.run_range(number, next..segment.start, seen, true)?;
            self.replay_segment(number, index, segment.clone(), seen)?;
            next = segment.end;
        }
        self.run_range(number, next..section.code.len(), seen, true)?;
        self.finish_first_iteration(number);
        if clocked { self.read_clock() } else { Ok(()) }
    }

    /// Replays the CUDA graph of a segment. If there is none yet, captures it first.
    fn replay_segment(
        &mut self,
        section: usize,
        index: usize,
        code: Range<usize>,
        seen: usize,
    ) -> Result<(), Failure> {
        let graph = match self.graphs[section][index] {
            Some(graph) => {
                self.run_range(section, code, seen, false)?;
                graph
            }
            None => {
                self.manager.backing.device.begin_capture()?;
                let enqueued = self.run_range(section, code, seen, true);
                let graph = self.manager.backing.device.end_capture();
                enqueued?;
                *self.graphs[section][index].insert(graph?)
            }
        };
        if !self.program.sections[section].kind.is_in_evaluation() {
            self.counts.replays += 1;
        }
        Ok(self.manager.backing.device.replay(graph)?)
    }

    /// Executes instructions. Without `enqueue`, executes only their host side (allocation, counting): a CUDA graph
    /// replays the device side.
    fn run_range(
        &mut self,
        section: usize,
        code: Range<usize>,
        seen: usize,
        enqueue: bool,
    ) -> Result<(), Failure> {
        for index in code {
            let instruction = &self.program.sections[section].code[index];
            if self.first_iterations.skips(section, instruction)
                || instruction.when == When::Last && !self.is_last
            {
                continue;
            }
            let took = self.run_instruction(section, index, seen, enqueue)?;
            let Some(timeline) = self.timeline.as_mut().filter(|timeline| timeline.is_recording(section))
            else {
                continue;
            };
            timeline.record_live(section, index, self.manager.ledger().usage(Pool::Device).live);
            if self.manager.backing.device.has_clock() {
                self.manager.backing.device.lap()?;
                self.pending_laps.push((section, index));
            } else {
                timeline.add_time(section, index, took);
            }
        }
        Ok(())
    }

    /// Executes one instruction. Returns the time of its action; for a launch, only the time of the device's call.
    fn run_instruction(
        &mut self,
        section: usize,
        index: usize,
        seen: usize,
        enqueue: bool,
    ) -> Result<Duration, Failure> {
        let instruction = &self.program.sections[section].code[index];
        if let (Action::Free(storage), true) = (&instruction.action, self.poison && enqueue) {
            let region = self.manager.region(*storage);
            self.manager.backing.device.poison(region)?;
        }
        let (began, before) = (Instant::now(), self.manager.backing.requests);
        self.manager.advance(section, index)?;
        if instruction.is_once() {
            self.counts.requests_in_first_iteration += self.manager.backing.requests - before;
        }
        self.counts.count(self.program, self.program.sections[section].kind, instruction);
        if !instruction.is_once() && self.last_uses.frees_late(self.program, instruction) {
            self.counts.count_late_free(self.program, instruction);
        }
        match instruction.action {
            Action::Allocate(_)
            | Action::Free(_)
            | Action::Leak(_)
            | Action::Collect { .. }
            | Action::EmptyCache => Ok(began.elapsed()),
            Action::Launch { ref op, ref outputs, .. } if let Some(site) = op.stored_site() => {
                self.load_parameter(site, outputs[0])?;
                Ok(began.elapsed())
            }
            _ if enqueue => {
                self.keep_applied(&instruction.action)?;
                Ok(self.enqueue(&instruction.action, seen)?)
            }
            _ => Ok(Duration::ZERO),
        }
    }

    /// Enqueues an action on the device. Returns the time of the device's call.
    fn enqueue(&mut self, action: &Action, seen: usize) -> Result<Duration, DeviceError> {
        let mut began = Instant::now();
        match action {
            Action::Launch { op, inputs, outputs, workspace } => {
                let inputs: Vec<Tensor> = inputs.iter().map(|&id| self.manager.tensor(id)).collect();
                let outputs: Vec<Tensor> = outputs.iter().map(|&id| self.manager.tensor(id)).collect();
                let workspace = workspace.map(|id| self.manager.tensor(id).region());
                began = Instant::now();
                self.manager.backing.device.launch(op, &inputs, &outputs, workspace)?;
            }
            Action::Copy { queue, from, to } => {
                let batches = self.program.value(*from).shape_source.batch_buffer();
                let samples = self.manager.tensor(*to).ty.shape.dims().first().copied().unwrap_or(1);
                let to = self.manager.tensor(*to).region();
                let from = self.manager.tensor(*from).region();
                began = Instant::now();
                match batches {
                    None => self.manager.backing.device.copy(*queue, from, to)?,
                    Some(batches) => {
                        let from = self.micro_batch_region(from, batches, seen, samples);
                        self.copy_samples(*queue, from, to, samples)?;
                    }
                }
            }
            &Action::Exchange { collective, from, to } => {
                let [from, to] = [from, to].map(|id| self.manager.tensor(id));
                self.manager.backing.device.exchange(collective, from, to)?;
            }
            Action::Record { queue, event } => self.manager.backing.device.record(*queue, *event)?,
            Action::Wait { queue, event } => self.manager.backing.device.wait(*queue, *event)?,
            Action::Allocate(_)
            | Action::Free(_)
            | Action::Leak(_)
            | Action::Collect { .. }
            | Action::EmptyCache => {}
        }
        Ok(began.elapsed())
    }
}
