//! An NVIDIA card, through its driver, NVRTC, cuBLASLt and, for several ranks, NCCL, each loaded at its first use.
//!
//! The compute, copy and communication queues are streams; the host queue runs inline. Device memory is allocated and
//! freed in compute queue order. Only `synchronize`, `read`, `write` and the host queue wait for the card.

// Calls into C libraries: each states why it is sound.
#![allow(unsafe_code)]

mod autotune;
mod cache;
mod calls;
mod clock;
mod communicator;
mod compiler;
mod cubin;
mod driver;
mod emulated;
mod errors;
mod exchanges;
mod graphs;
mod launcher;
mod launches;
mod libraries;
mod lock;
mod matmul;
mod memory;
mod modules;
mod probe;
mod queue_order;
mod queues;
mod report;
mod reservation;
mod sources;
#[cfg(test)]
mod tests;
mod unavailable;

use std::time::Duration;

use self::autotune::Environment;
use self::cache::Cache;
use self::calls::driver as sys;
use self::clock::Clock;
use self::communicator::Communicator;
use self::driver::{Context, check as checked};
use self::exchanges::Exchanges;
use self::graphs::Graphs;
use self::launcher::{Launcher, Operand};
use self::matmul::MatmulPlans;
use self::memory::DeviceMemory;
use self::modules::Modules;
use self::queues::Queues;
use super::check::{check, common_home};
use super::choice::ALIGNMENT;
use super::cpu::{Exchange, HostProcessor};
use super::target::HOST_THREADS;
use super::{
    Buffer, CapturedGraph, Choice, Collective, Device, DeviceError, DriverReading, Event, HostSlice, Pool,
    Queue, RankGroup, Region, Target, Tensor, Work,
};
use base::units::Bytes;
use ops::{DType, Op, TensorType, TypeError};

pub use self::driver::Card;
pub use self::emulated::{emulate_delay, emulate_way};
pub use self::lock::RegistersLock;
pub use self::probe::{CudaStack, Found, Inventory, OLDEST, check_ranks, equip, inventory, target};
pub use self::report::{KernelCompiler, KernelReport, SourceReport};
pub use self::unavailable::{MissingLibrary, Unavailable, Version};

/// The debugging pattern, all ones: NaN in every float format, and a token id beyond every table.
const POISON: u8 = 0xFF;
const POISON_PIECE: usize = 64 << 10;

/// A card as a device, confined to the thread that created it. Fields are dropped in declaration order, the context
/// last.
pub struct CudaDevice {
    target: Target,
    notes: Vec<String>,
    cache: Cache,
    environment: Environment,
    /// The processor for operations on host memory, created at its first use.
    host: Option<HostProcessor>,
    /// Host memory filled with the debugging pattern, created at its first use.
    pattern: Option<Buffer>,
    graphs: Graphs,
    modules: Modules,
    matmuls: MatmulPlans,
    memory: DeviceMemory,
    clock: Clock,
    /// The copy queue's clock, read before and after each copy. Created by the first call of `copied`.
    copy_clock: Option<Clock>,
    queues: Queues,
    context: Context,
}

impl CudaDevice {
    /// Compiles the kernels that are not in the cache, then creates a context on the card with this ordinal.
    ///
    /// # Errors
    /// `Unavailable` with the reason; `Call` or `Lost` if the driver fails.
    pub fn new(target: Target, ordinal: usize) -> Result<CudaDevice, DeviceError> {
        let equipment = equip(ordinal)?;
        let cache = Cache::open_user();
        let cubins = equipment.compiler.cubins(&equipment.architecture, &cache)?;
        let context = Context::new(&equipment.card)?;
        Ok(CudaDevice {
            target,
            notes: cache.warning().map(str::to_owned).into_iter().collect(),
            environment: Environment::new(&equipment, &cubins),
            cache,
            host: None,
            pattern: None,
            graphs: Graphs::default(),
            modules: Modules::load(&cubins)?,
            matmuls: MatmulPlans::new()?,
            memory: DeviceMemory::new(&context)?,
            clock: Clock::default(),
            copy_clock: None,
            queues: Queues::new()?,
            context,
        })
    }

    /// The same for a rank, which exchanges numbers with those of the group, each on a card of its own.
    ///
    /// # Errors
    /// As `new`; `Lost` if a rank does not arrive.
    pub fn of_rank(target: Target, ordinal: usize, mut group: RankGroup) -> Result<CudaDevice, DeviceError> {
        let version = communicator::load()?;
        let mut device = CudaDevice::new(target, ordinal)?;
        let (before, _) = device.context.free_and_total()?;
        let communicator = Communicator::new(&mut group, &device.context)?;
        device.queues.exchanges = Some(Exchanges::new(communicator, group)?);
        device.exchange_once()?;
        device.memory.trim()?;
        let taken = before.saturating_sub(device.context.free_and_total()?.0);
        device.notes.push(format!("NCCL {version} takes {} of cuda:{ordinal}", Bytes(taken)));
        Ok(device)
    }

    /// Exchanges each type in each way: from then on, the library has the memory that it needs.
    fn exchange_once(&mut self) -> Result<(), DeviceError> {
        let Some(rank) = self.queues.exchanges.as_ref().map(Exchanges::rank) else { return Ok(()) };
        let (index, ranks) = (rank.index, rank.of);
        let elements = ALIGNMENT as usize;
        let buffer = self.allocate(Pool::Device, ranks as u64 * DType::F32.bytes_of(elements))?;
        let tensor = |dtype, elements| Tensor { buffer, offset: 0, ty: TensorType::new(dtype, &[elements]) };
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (share, whole) = (tensor(dtype, elements), tensor(dtype, ranks * elements));
            let own = Tensor { offset: index as u64 * share.ty.bytes(), ..share };
            self.exchange(Collective::AllReduce, whole, whole)?;
            self.exchange(Collective::ReduceScatter, whole, own)?;
            self.exchange(Collective::AllGather, own, whole)?;
        }
        self.synchronize()?;
        self.free(buffer)?;
        self.exchanged().map(drop)
    }

    /// Fills host memory with copies of the pattern: the driver's asynchronous memset works on card memory only.
    fn poison_host(&mut self, address: u64, bytes: usize) -> Result<(), DeviceError> {
        let region = |buffer| Region { buffer, offset: 0, bytes: POISON_PIECE as u64 };
        let pattern = match self.pattern {
            Some(buffer) => self.memory.find(region(buffer))?.0,
            None => {
                let buffer = self.memory.allocate(Pool::Pinned, POISON_PIECE as u64, &mut self.queues)?;
                self.pattern = Some(buffer);
                let (pattern, _) = self.memory.find(region(buffer))?;
                // SAFETY: the buffer has this size and a host address, and nothing uses it yet.
                unsafe { std::ptr::write_bytes(pattern as *mut u8, POISON, POISON_PIECE) };
                pattern
            }
        };
        let stream = self.queues.stream(Queue::Compute);
        for offset in (0..bytes).step_by(POISON_PIECE) {
            let (to, count) = (address + offset as u64, POISON_PIECE.min(bytes - offset));
            // SAFETY: both lie within their buffers, which are freed only after this work.
            checked("cuMemcpyAsync", unsafe { sys::cuMemcpyAsync(to, pattern, count, stream) })?;
        }
        Ok(())
    }

    /// Runs the operation inline: the program has already made the host queue wait for its inputs.
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
        // SAFETY: types, alignment and bounds are checked; both pools have host addresses; the program's verifier has
        // ordered all accesses to the same memory.
        unsafe { host.run(op, &inputs, &outputs, workspace) };
        Ok(())
    }

    /// Waits for what may wait for other ranks, as the driver's own waits would without end.
    fn wait_for_ranks(&mut self) -> Result<(), DeviceError> {
        if self.queues.exchanges.is_some() { self.queues.synchronize() } else { Ok(()) }
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
        let selected = autotune::select(self, work, stored);
        if let Some(warning) =
            self.cache.warning().filter(|warning| !self.notes.iter().any(|note| note == warning))
        {
            self.notes.push(warning.to_owned());
        }
        selected
    }

    fn choices(&self) -> Vec<Choice> {
        self.matmuls.choices()
    }

    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.memory.allocate(pool, bytes, &mut self.queues)
    }

    fn allocate_segment(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        if pool != Pool::Device {
            return self.allocate(pool, bytes);
        }
        let buffer = self.memory.allocate_segment(bytes, &mut self.queues)?;
        // The driver's pools keep no high-water mark of this memory.
        self.memory.sample(&self.context)?;
        Ok(buffer)
    }

    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.memory.free(buffer, &mut self.queues)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        self.memory.reserve(bytes, &self.context)
    }

    fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.memory.commit(part)?;
        // The driver's pools keep no high-water mark of this memory.
        Ok(self.memory.sample(&self.context)?)
    }

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.synchronize()?;
        self.memory.decommit(part)
    }

    fn copy(&mut self, queue: Queue, from: Region, to: Region) -> Result<(), DeviceError> {
        if !Queue::OF_DEVICE.contains(&queue) {
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
            self.memory.prepare_copy(from.buffer, &mut self.queues)?;
            self.memory.prepare_copy(to.buffer, &mut self.queues)?;
        }
        let (bytes, stream) = (from.bytes as usize, self.queues.stream(queue));
        let mut clock = self.copy_clock.as_mut().filter(|_| queue == Queue::Copy);
        if let Some(clock) = &mut clock {
            clock.lap(stream)?;
        }
        // SAFETY: both regions lie within their buffers, which are freed only after this copy.
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
        let mut launcher = Launcher::new(stream, &mut self.modules, &mut self.matmuls);
        launches::run(op, &inputs, &outputs, workspace, &mut launcher)
    }

    fn exchange(&mut self, collective: Collective, from: Tensor, to: Tensor) -> Result<(), DeviceError> {
        if self.queues.exchanges.is_none() {
            return Err(DeviceError::NoRanks);
        }
        let ((source, source_pool), (sink, sink_pool)) =
            (self.memory.find(from.region())?, self.memory.find(to.region())?);
        if source_pool.home() != sink_pool.home() {
            let problem = "operands must be all in device memory or all in host memory".to_owned();
            return Err(TypeError { operation: collective.name(), problem }.into());
        }
        if source_pool.home() == Pool::Host {
            let (from_host, to_host) = (source as *const u8, sink as *mut u8);
            let bytes = from.ty.bytes().max(to.ty.bytes()) as usize;
            let exchange = Exchange { collective, dtype: to.ty.dtype, from: from_host, to: to_host, bytes };
            let exchanges = self.queues.exchanges.as_mut().ok_or(DeviceError::NoRanks)?;
            // SAFETY: both regions lie within their buffers; the stream and this thread have waited for what the program
            // orders before.
            return unsafe { exchanges.exchange_on_host(exchange) };
        }
        self.memory.prepare_exchange(from.buffer, &mut self.queues)?;
        self.memory.prepare_exchange(to.buffer, &mut self.queues)?;
        let share = if to.ty.bytes() < from.ty.bytes() { to.ty } else { from.ty };
        let exchanges = self.queues.exchanges.as_mut().ok_or(DeviceError::NoRanks)?;
        // SAFETY: both regions lie within their buffers, which are freed only after this exchange.
        unsafe { exchanges.enqueue(collective, share, [source, sink]) }
    }

    fn sum_over_ranks(&mut self, numbers: &mut [f64]) -> Result<(), DeviceError> {
        if self.queues.exchanges.is_none() {
            return Ok(());
        }
        self.queues.synchronize()?;
        self.queues.exchanges.as_mut().map_or(Ok(()), |exchanges| exchanges.sum(numbers))
    }

    fn exchanged(&mut self) -> Result<Option<Duration>, DeviceError> {
        if self.queues.exchanges.is_none() {
            return Ok(None);
        }
        self.queues.synchronize()?;
        Ok(self.queues.exchanges.as_mut().map(Exchanges::take_time))
    }

    fn lend(&mut self, region: Region) -> Result<HostSlice, DeviceError> {
        self.memory.lend(region)
    }

    fn record(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        Ok(self.queues.record(queue, event)?)
    }

    /// Waiting for an event that was never recorded returns at once.
    fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        self.queues.wait(queue, event)
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
        self.wait_for_ranks()?;
        Ok(self.clock.laps()?)
    }

    fn copied(&mut self) -> Result<Option<Duration>, DeviceError> {
        self.wait_for_ranks()?;
        let laps = self.copy_clock.get_or_insert_default().laps()?;
        // Every second lap is the gap between two copies.
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
                // SAFETY: the region lies within its buffer, which is freed only after this work.
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
                // SAFETY: the region lies within its buffer; `bytes` outlives the copy, because the queue is
                // synchronised below.
                checked("cuMemcpyHtoDAsync", unsafe {
                    sys::cuMemcpyHtoDAsync_v2(address, source, count, stream)
                })?;
                // The driver's synchronous copy would return before the card has received all bytes.
                self.queues.synchronize()
            }
            Pool::Host | Pool::Pinned => {
                // SAFETY: the region lies within its buffer, which has a host address, and nothing else uses it after
                // `synchronize`.
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
                // SAFETY: the region lies within its buffer; `bytes` outlives the copy, because the queue is
                // synchronised below.
                checked("cuMemcpyDtoHAsync", unsafe {
                    sys::cuMemcpyDtoHAsync_v2(sink, address, count, stream)
                })?;
                self.queues.synchronize()
            }
            Pool::Host | Pool::Pinned => {
                // SAFETY: the region lies within its buffer, which has a host address, and nothing else uses it after
                // `synchronize`.
                unsafe { std::ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), count) };
                Ok(())
            }
        }
    }

    fn begin_external_reading(&mut self) -> Result<bool, DeviceError> {
        self.synchronize()?;
        self.memory.begin_external_reading(&self.context, &self.queues)?;
        Ok(true)
    }

    fn external_reading(&mut self) -> Result<Option<DriverReading>, DeviceError> {
        self.synchronize()?;
        Ok(self.memory.reading(&self.context)?)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Other ranks may never come to what still runs: after an error, nothing waits for them.
        if let Some(exchanges) = &mut self.queues.exchanges {
            exchanges.abandon();
        }
        // Memory must not be freed while queued work uses it. A lost device has no queued work.
        let _ = self.queues.synchronize();
    }
}
