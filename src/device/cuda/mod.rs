//! A card of NVIDIA's, through its driver, NVRTC and cuBLASLt, all of them loaded when they are first needed.
//!
//! The compute and the copy queue are streams, and what the host computes is done when it is enqueued. Memory of the device
//! pool comes and goes in the compute queue's order. Nothing but `synchronize`, `read`, `write` and the host's queue waits
//! for the card.

// The libraries are C: each call gives its reason.
#![allow(unsafe_code)]

mod cache;
mod calls;
mod choosing;
mod clock;
mod compiler;
mod cubin;
mod driver;
mod emulated;
mod errors;
mod graphs;
mod launcher;
mod launches;
mod libraries;
mod lock;
mod memory;
mod modules;
mod order;
mod probe;
mod products;
mod queues;
mod report;
mod reservation;
mod sources;
#[cfg(test)]
mod tests;
mod unavailable;

use std::time::Duration;

use self::cache::Cache;
use self::calls::driver as sys;
use self::choosing::Setting;
use self::clock::Clock;
use self::driver::{Context, check as checked};
use self::graphs::Graphs;
use self::launcher::{Launcher, Operand};
use self::memory::Memory;
use self::modules::Modules;
use self::products::Products;
use self::queues::Queues;
use super::check::{check, common_home};
use super::choice::ALIGNMENT;
use super::cpu::HostProcessor;
use super::target::HOST_THREADS;
use super::{
    Buffer, CapturedGraph, Choice, Device, DeviceError, Event, ExternalReading, Lent, Pool, Queue, Region,
    Target, Tensor, Work,
};
use ops::Op;

pub use self::driver::Card;
pub use self::emulated::{emulate_delay, emulate_way};
pub use self::lock::RegistersLock;
pub use self::probe::{Equipment, Found, Inventory, OLDEST, equip, inventory, target};
pub use self::report::{KernelCompiler, KernelReport, SourceReport};
pub use self::unavailable::{MissingLibrary, Unavailable, Version};

/// The debugging pattern, all ones: not a number in every float format, and a token that no table has.
const POISON: u8 = 0xFF;
const POISON_PIECE: usize = 64 << 10;

/// A card as a device. It stays on the thread that made it. Its parts are dropped in the order they are listed, the
/// context last.
pub struct CudaDevice {
    target: Target,
    notes: Vec<String>,
    cache: Cache,
    setting: Setting,
    /// What computes on the host's memory, once it was needed.
    host: Option<HostProcessor>,
    /// Host memory full of the debugging pattern, once it was needed.
    pattern: Option<Buffer>,
    graphs: Graphs,
    modules: Modules,
    products: Products,
    memory: Memory,
    clock: Clock,
    /// Of the copy queue, read before and after each copy, once somebody has asked for what they take.
    copies: Option<Clock>,
    queues: Queues,
    context: Context,
}

impl CudaDevice {
    /// Compiles what is not in the cache, then makes a context on the card of an ordinal.
    ///
    /// # Errors
    /// `Unavailable`, with what is missing or in the way; `Call` or `Lost` if the driver fails.
    pub fn new(target: Target, ordinal: usize) -> Result<CudaDevice, DeviceError> {
        let equipment = equip(ordinal)?;
        let cache = Cache::of_user();
        let cubins = equipment.compiler.cubins(&equipment.architecture, &cache)?;
        let context = Context::new(&equipment.card)?;
        Ok(CudaDevice {
            target,
            notes: cache.complaint().map(str::to_owned).into_iter().collect(),
            setting: Setting::new(&equipment, &cubins),
            cache,
            host: None,
            pattern: None,
            graphs: Graphs::default(),
            modules: Modules::load(&cubins)?,
            products: Products::new()?,
            memory: Memory::new(&context)?,
            clock: Clock::default(),
            copies: None,
            queues: Queues::new()?,
            context,
        })
    }

    /// The driver fills the card's memory alone: what the host's is filled with is copied from a piece of it.
    fn poison_host(&mut self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        let region = |buffer| Region { buffer, offset: 0, bytes: POISON_PIECE as u64 };
        let pattern = match self.pattern {
            Some(buffer) => self.memory.find(region(buffer))?.0,
            None => {
                let buffer = self.memory.allocate(Pool::Pinned, POISON_PIECE as u64, &mut self.queues)?;
                self.pattern = Some(buffer);
                let (pattern, _) = self.memory.find(region(buffer))?;
                // SAFETY: the buffer is as large, at the host's own address, and nothing works on it yet.
                unsafe { std::ptr::write_bytes(pattern as *mut u8, POISON, POISON_PIECE) };
                pattern
            }
        };
        let stream = self.queues.stream(Queue::Compute);
        for offset in (0..bytes).step_by(POISON_PIECE) {
            let (to, count) = (address + offset as u64, POISON_PIECE.min(bytes - offset));
            // SAFETY: both lie within their buffers, which are given back only behind this.
            checked("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(to, pattern, count, stream) })?;
        }
        Ok(())
    }

    /// Done when this returns: the program has made the host's queue wait for what it needs.
    fn launch_on_host(
        &mut self,
        op: &Op,
        inputs: &[Operand],
        outputs: &[Operand],
        (scratch, scratch_bytes): (u64, u64),
    ) -> Result<(), DeviceError> {
        let host = match &mut self.host {
            Some(host) => host,
            none => none.insert(HostProcessor::new(HOST_THREADS)?),
        };
        let on_host = |operand: &Operand| (operand.address as *mut u8, operand.ty);
        let [inputs, outputs] = [inputs, outputs].map(|all| all.iter().map(on_host).collect::<Vec<_>>());
        let workspace = (scratch_bytes > 0).then_some((scratch as *mut u8, scratch_bytes as usize));
        // SAFETY: types, alignment and bounds are checked; both pools are at the host's own addresses; the program's
        // verifier has ordered what works on the same memory.
        unsafe { host.run(op, &inputs, &outputs, workspace) };
        Ok(())
    }

    fn operands(&self, tensors: &[Tensor]) -> Result<Vec<Operand>, DeviceError> {
        let operand = |tensor: &Tensor| {
            let (address, _) = self.memory.find(tensor.region())?;
            Ok(Operand { address, ty: tensor.ty })
        };
        tensors.iter().map(operand).collect()
    }
}

impl Device for CudaDevice {
    fn target(&self) -> &Target {
        &self.target
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn choose(&mut self, work: &[Work], stored: &[Choice]) -> Result<(), DeviceError> {
        let chosen = choosing::choose(self, work, stored);
        if self.notes.is_empty() {
            self.notes.extend(self.cache.complaint().map(str::to_owned));
        }
        chosen
    }

    fn choices(&self) -> Vec<Choice> {
        self.products.choices()
    }

    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.memory.allocate(pool, bytes, &mut self.queues)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.memory.free(buffer, &mut self.queues)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.memory.reserve(bytes, &self.context)
    }

    fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.memory.commit(part)?;
        // No pool of the driver's keeps the most of it in mind.
        Ok(self.memory.sample(&self.context)?)
    }

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.synchronize()?;
        self.memory.decommit(part)
    }

    fn copy(&mut self, queue: Queue, from: Region, to: Region) -> Result<(), DeviceError> {
        if queue == Queue::Host {
            return Err(DeviceError::NoCopies);
        }
        let ((source, _), (sink, _)) = (self.memory.find(from)?, self.memory.find(to)?);
        if from.bytes != to.bytes {
            let Region { buffer, offset, bytes: size } = to;
            return Err(DeviceError::OutOfBounds { buffer, offset, bytes: from.bytes, size });
        }
        if from.bytes == 0 {
            return Ok(());
        }
        if queue == Queue::Copy {
            self.memory.copies(from.buffer, &mut self.queues)?;
            self.memory.copies(to.buffer, &mut self.queues)?;
        }
        let (bytes, stream) = (from.bytes as usize, self.queues.stream(queue));
        let mut clock = self.copies.as_mut().filter(|_| queue == Queue::Copy);
        if let Some(clock) = &mut clock {
            clock.lap(stream)?;
        }
        // SAFETY: both regions lie within their buffers, which are given back only behind this copy.
        checked("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(sink, source, bytes, stream) })?;
        if let Some(clock) = &mut clock {
            clock.lap(stream)?;
        }
        Ok(())
    }

    fn launch(
        &mut self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: Option<Region>,
    ) -> Result<(), DeviceError> {
        let buffers = inputs.iter().chain(outputs).map(|tensor| tensor.buffer);
        let home = common_home(op, buffers, |buffer| self.memory.pool_of(buffer))?;
        let alignment = if home == Pool::Host { HostProcessor::ALIGNMENT } else { ALIGNMENT };
        check(op, inputs, outputs, workspace, (&self.target, home), alignment)?;
        let (inputs, outputs) = (self.operands(inputs)?, self.operands(outputs)?);
        let workspace = match workspace {
            Some(region) => (self.memory.find(region)?.0, region.bytes),
            None => (0, 0),
        };
        if home == Pool::Host {
            return self.launch_on_host(op, &inputs, &outputs, workspace);
        }
        let stream = self.queues.stream(Queue::Compute);
        let mut launcher = Launcher::new(stream, &mut self.modules, &mut self.products);
        launches::run(op, &inputs, &outputs, workspace, &mut launcher)
    }

    fn lend(&mut self, region: Region) -> Result<Lent, DeviceError> {
        self.memory.lend(region)
    }

    fn record(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        Ok(self.queues.record(queue, event)?)
    }

    /// Waiting for an event that was never recorded waits for nothing.
    fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        Ok(self.queues.wait(queue, event)?)
    }

    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        Ok(self.graphs.begin(self.queues.stream(Queue::Compute))?)
    }

    fn end_capture(&mut self) -> Result<CapturedGraph, DeviceError> {
        Ok(self.graphs.end(self.queues.stream(Queue::Compute))?)
    }

    fn replay(&mut self, graph: CapturedGraph) -> Result<(), DeviceError> {
        Ok(self.graphs.replay(graph, self.queues.stream(Queue::Compute))?)
    }

    fn has_clock(&self) -> bool {
        true
    }

    fn lap(&mut self) -> Result<(), DeviceError> {
        Ok(self.clock.lap(self.queues.stream(Queue::Compute))?)
    }

    fn laps(&mut self) -> Result<Vec<Duration>, DeviceError> {
        Ok(self.clock.laps()?)
    }

    fn copied(&mut self) -> Result<Option<Duration>, DeviceError> {
        let laps = self.copies.get_or_insert_default().laps()?;
        // Every other one is the time between two copies.
        Ok(Some(laps.into_iter().step_by(2).sum()))
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.queues.synchronize()?;
        self.memory.release_retired()?;
        Ok(self.memory.sample(&self.context)?)
    }

    fn poison(&mut self, region: Region) -> Result<(), DeviceError> {
        let (address, pool) = self.memory.find(region)?;
        let (bytes, stream) = (region.bytes as usize, self.queues.stream(Queue::Compute));
        match pool {
            _ if bytes == 0 => Ok(()),
            Pool::Host | Pool::Pinned => self.poison_host(address, bytes),
            Pool::Device => {
                // SAFETY: the region lies within its buffer, which is given back only behind this.
                let status = unsafe { sys::cuMemsetD8Async(address, POISON, bytes, stream) };
                Ok(checked("cuMemsetD8Async", status)?)
            }
        }
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        self.queues.synchronize()?;
        let (address, pool) = self.memory.find(region)?;
        let count = bytes.len().min(region.bytes as usize);
        match pool {
            Pool::Device => {
                let (source, stream) = (bytes.as_ptr().cast(), self.queues.stream(Queue::Compute));
                // SAFETY: the region lies within its buffer; the bytes stay where they are until the copy is done.
                checked("cuMemcpyHtoDAsync", unsafe {
                    sys::cuMemcpyHtoDAsync_v2(address, source, count, stream)
                })?;
                // Not the driver's synchronous copy, which returns before the card has all of the bytes.
                Ok(self.queues.synchronize()?)
            }
            Pool::Host | Pool::Pinned => {
                // SAFETY: the region lies within its buffer, which is at the host's own address, and nothing else
                // works on it after `synchronize`.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, count) };
                Ok(())
            }
        }
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.queues.synchronize()?;
        let (address, pool) = self.memory.find(region)?;
        let count = bytes.len().min(region.bytes as usize);
        match pool {
            Pool::Device => {
                let (sink, stream) = (bytes.as_mut_ptr().cast(), self.queues.stream(Queue::Compute));
                // SAFETY: the region lies within its buffer; the bytes stay where they are until the copy is done.
                checked("cuMemcpyDtoHAsync", unsafe {
                    sys::cuMemcpyDtoHAsync_v2(sink, address, count, stream)
                })?;
                Ok(self.queues.synchronize()?)
            }
            Pool::Host | Pool::Pinned => {
                // SAFETY: the region lies within its buffer, which is at the host's own address, and nothing else
                // works on it after `synchronize`.
                unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), count) };
                Ok(())
            }
        }
    }

    fn begin_witness(&mut self) -> Result<bool, DeviceError> {
        self.synchronize()?;
        self.memory.begin_witness(&self.context, &self.queues)?;
        Ok(true)
    }

    fn witness(&mut self) -> Result<Option<ExternalReading>, DeviceError> {
        self.synchronize()?;
        Ok(self.memory.reading(&self.context)?)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Memory must not be given back under queued work. A lost device has none left.
        let _ = self.queues.synchronize();
    }
}
