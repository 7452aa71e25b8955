//! Walks a program on a device: one plain loop.

mod batches;
mod gradients;
mod parameters;
mod timing;

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use self::batches::At;
use super::counts::Counts;
use super::digest;
use super::timeline::Timeline;
use super::uses::Uses;
use compile::{Action, FirstIterations, Program, SectionKind};
use data::{Batch, StoredParameters};
use device::{Buffer, CapturedGraph, Device, DeviceError, Ledger, Pool, Region, Tensor};
#[cfg(test)]
use memory::{Allocator, CacheWork};
use memory::{Backing, Failure, MemoryManager};
use ops::ValueId;

/// Bytes of a device that are read at a time: a whole tensor beside the pools would show in the resident set as a
/// leak.
const PIECE: usize = 64 << 10;

/// The device as a backing store of memory.
struct OnDevice<'a> {
    device: &'a mut dyn Device,
    requests: u64,
}

impl Backing for OnDevice<'_> {
    fn request(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.requests += 1;
        self.device.allocate(pool, bytes)
    }

    fn give_back(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.device.free(buffer)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.device.reserve(bytes)
    }

    fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.requests += 1;
        self.device.commit(part)
    }

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.device.decommit(part)
    }
}

/// What a step tells the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    pub loss: f32,
    /// Of the gradients before clipping; known where there is clipping or a loss scale. Not finite where the step
    /// was skipped.
    pub gradient_norm: Option<f32>,
    /// What the gradients of the next step are scaled by, where they are.
    pub loss_scale: Option<f32>,
}

/// A program on a device, ready to take steps.
pub struct Engine<'a> {
    program: &'a Program,
    manager: MemoryManager<'a, OnDevice<'a>>,
    /// What parameters start from, where the program says that they are stored.
    weights: Option<&'a StoredParameters>,
    counts: Counts,
    uses: Uses,
    at: At,
    /// Whether freed memory is overwritten.
    poison: bool,
    /// By section: how often it was gone through.
    passes: Vec<u64>,
    first_iterations: FirstIterations,
    /// By section and segment: what the device replays, once it was captured.
    graphs: Vec<Vec<Option<CapturedGraph>>>,
    timeline: Option<Timeline>,
    /// What ran since the device's clock was last read, if it has one: section and instruction.
    timed: Vec<(usize, usize)>,
    /// Of gradients that are applied in the backward pass, by bucket: what they were, if somebody wants to know.
    applied: Option<HashMap<ValueId, Vec<u8>>>,
}

impl<'a> Engine<'a> {
    /// Takes the memory that is asked for at once.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn new(
        program: &'a Program,
        device: &'a mut dyn Device,
        poison: bool,
    ) -> Result<Engine<'a>, Failure> {
        let target = device.target().clone();
        let manager = MemoryManager::new(program, &target, OnDevice { device, requests: 0 })?;
        Ok(Engine::in_memory(program, manager, poison))
    }

    /// With any allocator.
    #[cfg(test)]
    pub(super) fn with_allocator(
        program: &'a Program,
        device: &'a mut dyn Device,
        allocator: Box<dyn Allocator + 'a>,
    ) -> Result<Engine<'a>, Failure> {
        let target = device.target().clone();
        let backing = OnDevice { device, requests: 0 };
        let manager = MemoryManager::with_allocator(program, &target, backing, allocator)?;
        Ok(Engine::in_memory(program, manager, true))
    }

    fn in_memory(program: &'a Program, manager: MemoryManager<'a, OnDevice<'a>>, poison: bool) -> Engine<'a> {
        Engine {
            program,
            manager,
            weights: None,
            counts: Counts::default(),
            uses: Uses::new(program),
            at: At::default(),
            poison,
            passes: vec![0; program.sections.len()],
            first_iterations: FirstIterations::new(program),
            graphs: program.sections.iter().map(|section| vec![None; section.capture_ranges.len()]).collect(),
            timeline: None,
            timed: Vec::new(),
            applied: None,
        }
    }

    pub fn ledger(&self) -> &Ledger {
        self.manager.ledger()
    }

    pub fn counts(&self) -> Counts {
        let Counts { requests_in_evaluation, requests_once, cache_in_evaluation, .. } = self.counts;
        let requests = self.manager.backing.requests - requests_in_evaluation - requests_once;
        let cache = self.manager.cache_work().since(&cache_in_evaluation);
        Counts { requests, cache, leaked_bytes: self.manager.leaked().total(), ..self.counts }
    }

    /// What a cache did, in evaluations as well.
    #[cfg(test)]
    pub(super) fn cache_work(&self) -> CacheWork {
        self.manager.cache_work()
    }

    /// What the program runs on.
    pub fn device(&mut self) -> &mut dyn Device {
        self.manager.backing.device
    }

    /// Makes parameters and state, but for what the first step makes.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn start(&mut self) -> Result<(), Failure> {
        self.section(SectionKind::Start, 0)?;
        self.synchronize()
    }

    /// One optimizer step on a whole batch. `numbers` are what the optimizer's update takes in this step.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn step(&mut self, batch: &Batch, numbers: &[f32]) -> Result<StepReport, Failure> {
        let slot = self.put_batch(batch)?;
        self.step_on(slot, None, numbers)
    }

    /// The same on the batch that lies in a slot of the host_buffers. That of the `next` step comes to the device meanwhile, if it
    /// is there already and batches come ahead.
    ///
    /// # Errors
    /// As for `step`.
    pub(super) fn step_on(
        &mut self,
        slot: usize,
        next: Option<usize>,
        numbers: &[f32],
    ) -> Result<StepReport, Failure> {
        self.gradients_on(slot, next, numbers)?;
        self.update()
    }

    /// The loss of a whole batch of the evaluation split, summed over its samples.
    ///
    /// # Errors
    /// Out of memory, or a device that fails.
    pub fn evaluate(&mut self, batch: &Batch) -> Result<f64, Failure> {
        let slot = self.put_batch(batch)?;
        self.evaluate_on(slot)
    }

    /// The same of the batch that lies in a slot of the host_buffers.
    ///
    /// # Errors
    /// As for `evaluate`.
    pub(super) fn evaluate_on(&mut self, slot: usize) -> Result<f64, Failure> {
        self.make_all()?;
        self.begin_evaluation(slot)?;
        let program = self.program;
        let (before, cache_before) = (self.manager.backing.requests, self.manager.cache_work());
        let (mut seen, mut sum) = (0, 0.0);
        for section in program.evaluation() {
            for _ in 0..section.repeat_count {
                self.section(section.kind, seen)?;
                seen += section.samples;
                self.counts.evaluations += 1;
                sum +=
                    section.samples as f64 * f64::from(self.get_number(program.host_buffers.results.loss)?);
            }
        }
        self.counts.requests_in_evaluation += self.manager.backing.requests - before;
        self.counts.cache_in_evaluation += self.manager.cache_work().since(&cache_before);
        Ok(sum)
    }

    /// SHA-256 of all parameters and the optimizer's states, bit for bit.
    ///
    /// # Errors
    /// A device that fails.
    pub fn digest(&mut self) -> Result<String, Failure> {
        self.make_all()?;
        let mut digest = Sha256::new();
        let mut piece = vec![0; PIECE];
        for (id, member) in digest::tensors(self.program) {
            let region = self.part(id, member.offset, member.elements());
            self.pieces::<Failure>(region, &mut piece, |piece| {
                digest.update(piece);
                Ok(())
            })?;
        }
        Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Hands the elements of a value to `take`, in order, a piece at a time.
    ///
    /// # Errors
    /// A device that fails, or what `take` says.
    pub(super) fn read<E: From<Failure>>(
        &mut self,
        id: ValueId,
        take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let region = self.manager.tensor(id).region();
        self.pieces(region, &mut vec![0; PIECE], take)
    }

    /// So many elements of a value, from one of them on.
    fn part(&self, id: ValueId, first: usize, count: usize) -> Region {
        let tensor = self.manager.tensor(id);
        let dtype = tensor.ty.dtype;
        let (offset, bytes) = (tensor.offset + dtype.bytes_of(first), dtype.bytes_of(count));
        Region { buffer: tensor.buffer, offset, bytes }
    }

    /// Reads so many elements of a value, from one of them on.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) fn read_part(&mut self, id: ValueId, first: usize, count: usize) -> Result<Vec<u8>, Failure> {
        let region = self.part(id, first, count);
        let mut bytes = vec![0; region.bytes as usize];
        Ok(self.manager.backing.device.read(region, &mut bytes).map(|()| bytes)?)
    }

    /// Gives a value other numbers than the program does.
    #[cfg(test)]
    pub(super) fn put(&mut self, id: ValueId, numbers: &[f32]) -> Result<(), Failure> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let region = self.manager.tensor(id).region();
        Ok(self.manager.backing.device.write(region, &bytes)?)
    }

    /// Returns once all that was begun is done.
    ///
    /// # Errors
    /// A device that fails.
    pub(super) fn synchronize(&mut self) -> Result<(), Failure> {
        Ok(self.manager.backing.device.synchronize()?)
    }

    /// Gives all memory back.
    ///
    /// # Errors
    /// A device that fails.
    pub fn close(self) -> Result<(), Failure> {
        self.manager.backing.device.synchronize()?;
        self.manager.close()
    }

    /// Goes through a section once. `seen` samples of the batch come before those that it sees.
    fn section(&mut self, kind: SectionKind, seen: usize) -> Result<(), Failure> {
        let found = self.program.sections.iter().position(|section| section.kind == kind);
        let number = found.expect("compilation makes the sections that are run");
        let section = &self.program.sections[number];
        let clocked = self.has_clock() && self.timeline.as_ref().is_some_and(|t| t.wants(number));
        if clocked {
            self.manager.backing.device.lap()?;
        }
        // What kernels and libraries set up at their first use cannot be captured; what is replayed as a whole cannot
        // be timed in parts, or looked at in between.
        let captures = self.passes[number] > 0 && !clocked && self.applied.is_none();
        self.passes[number] += 1;
        let mut next = 0;
        for (index, segment) in section.capture_ranges.iter().enumerate().filter(|_| captures) {
            self.stretch(number, next..segment.start, seen, true)?;
            self.segment(number, index, segment.clone(), seen)?;
            next = segment.end;
        }
        self.stretch(number, next..section.code.len(), seen, true)?;
        self.open(number);
        if clocked { self.read_clock() } else { Ok(()) }
    }

    /// Has the device replay a segment, which is captured first if it was not yet.
    fn segment(
        &mut self,
        section: usize,
        index: usize,
        code: Range<usize>,
        seen: usize,
    ) -> Result<(), Failure> {
        let graph = match self.graphs[section][index] {
            Some(graph) => {
                self.stretch(section, code, seen, false)?;
                graph
            }
            None => {
                self.manager.backing.device.begin_capture()?;
                let enqueued = self.stretch(section, code, seen, true);
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

    /// Goes through instructions. Without `enqueue`, the device does by itself what they say.
    fn stretch(
        &mut self,
        section: usize,
        code: Range<usize>,
        seen: usize,
        enqueue: bool,
    ) -> Result<(), Failure> {
        for index in code {
            if self.first_iterations.skips(section, &self.program.sections[section].code[index]) {
                continue;
            }
            let took = self.instruction(section, index, seen, enqueue)?;
            let Some(timeline) = self.timeline.as_mut().filter(|timeline| timeline.wants(section)) else {
                continue;
            };
            timeline.record(section, index, self.manager.ledger().usage(Pool::Device).live);
            if self.manager.backing.device.has_clock() {
                self.manager.backing.device.lap()?;
                self.timed.push((section, index));
            } else {
                timeline.add(section, index, took);
            }
        }
        Ok(())
    }

    /// Returns what the action itself took: of a launch, the device's part alone.
    fn instruction(
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
        if instruction.first_iteration {
            self.counts.requests_once += self.manager.backing.requests - before;
        }
        self.counts.count(self.program, self.program.sections[section].kind, instruction);
        if !instruction.first_iteration && self.uses.frees_late(self.program, instruction) {
            self.counts.count_late(self.program, instruction);
        }
        match instruction.action {
            Action::Allocate(_) | Action::Free(_) | Action::Leak(_) | Action::EmptyCache => {
                Ok(began.elapsed())
            }
            Action::Launch { ref op, ref outputs, .. } if let Some(site) = op.stored_site() => {
                self.read_stored(site, outputs[0])?;
                Ok(began.elapsed())
            }
            _ if enqueue => {
                self.keep_applied(&instruction.action)?;
                Ok(self.enqueue(&instruction.action, seen)?)
            }
            _ => Ok(Duration::ZERO),
        }
    }

    /// Hands the device its part of an action. Returns what that took.
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
                let to = self.manager.tensor(*to).region();
                let mut from = self.manager.tensor(*from).region();
                if let Some(batches) = batches {
                    from = self.seen_of(from, batches, seen, to.bytes);
                }
                began = Instant::now();
                self.manager.backing.device.copy(*queue, from, to)?;
            }
            Action::Record { queue, event } => self.manager.backing.device.record(*queue, *event)?,
            Action::Wait { queue, event } => self.manager.backing.device.wait(*queue, *event)?,
            Action::Allocate(_) | Action::Free(_) | Action::Leak(_) | Action::EmptyCache => {}
        }
        Ok(began.elapsed())
    }

    fn pieces<E: From<Failure>>(
        &mut self,
        region: Region,
        piece: &mut [u8],
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        for start in (0..region.bytes).step_by(piece.len()) {
            let bytes = (region.bytes - start).min(piece.len() as u64);
            let part = Region { buffer: region.buffer, offset: region.offset + start, bytes };
            let piece = &mut piece[..bytes as usize];
            self.manager.backing.device.read(part, piece).map_err(Failure::from)?;
            take(piece)?;
        }
        Ok(())
    }

    fn get_number(&mut self, id: ValueId) -> Result<f32, Failure> {
        self.get_numbers(id).map(|[number]| number)
    }

    fn get_numbers<const N: usize>(&mut self, id: ValueId) -> Result<[f32; N], Failure> {
        let mut bytes = [[0; size_of::<f32>()]; N];
        let region = self.manager.tensor(id).region();
        self.manager.backing.device.read(region, bytes.as_flattened_mut())?;
        Ok(bytes.map(f32::from_ne_bytes))
    }
}
