//! Devices: the `Device` trait, memory pools, the ledger, and the CPU and CUDA implementations. Independent of models
//! and strategies.

mod check;
mod choice;
mod collective;
mod cpu;
mod cuda;
mod known;
mod ledger;
mod lent;
mod open;
mod probe;
mod rank;
mod rates;
mod role;
mod target;

use std::time::Duration;

use ops::{DType, Op, TensorType, TypeError};

pub use choice::{Choice, Placed, Source, Work};
pub use collective::Collective;
pub use cpu::{
    CpuDevice, Delay, RankGroup, SharedMemory, described as described_processor, target as cpu_target,
};
pub use cpu::{LEAST_PRODUCT_WORKSPACE_PER_THREAD, OPERAND_ALIGNMENT};
pub use cpu::{from_f32, to_f32};
pub use cuda::{
    Card, CudaDevice, CudaStack, Found, Inventory, KernelCompiler, KernelReport, MissingLibrary,
    OLDEST as OLDEST_CARD, RegistersLock, SourceReport, Unavailable, Version, check_ranks, equip, inventory,
    target as described_card,
};
pub use cuda::{emulate_delay, emulate_way};
pub use known::{ASSUMED_CONTEXT, KNOWN_CARDS, KnownCard};
pub use ledger::{Ledger, Peak, Phase, Position, Usage};
pub use lent::HostSlice;
pub use open::{DetectError, Detected, DeviceChoice, detect, find, open, open_card, open_rank};
pub use probe::{ProbeError, ProbeReport, in_child as probe_in_child, this_program};
pub use rank::{Rank, rank_environment};
pub use rates::{Factors, Rates, measure as measure_rates, product as measure_product};
pub use role::{ByRole, Role};
pub use target::{ASSUMED_COMMUNICATOR, DeviceKind, Figures, Limits, Target};

/// The memory pool of a value. As the home of an operation, `Device` and `Host` select the processor that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    Device,
    /// Pageable host memory: a copy between it and a card blocks the caller.
    Host,
    /// Page-locked host memory, which the copy queue reads and writes asynchronously.
    Pinned,
}

impl Pool {
    pub const ALL: [Pool; 3] = [Pool::Device, Pool::Host, Pool::Pinned];

    /// The two memories. Each has its own limit, shared by all of its pools.
    pub const HOMES: [Pool; 2] = [Pool::Device, Pool::Host];

    pub fn name(self) -> &'static str {
        match self {
            Pool::Device => "device",
            Pool::Host => "host",
            Pool::Pinned => "pinned host",
        }
    }

    /// The memory that contains the pool: `Device` or `Host`.
    pub fn home(self) -> Pool {
        match self {
            Pool::Device => Pool::Device,
            Pool::Host | Pool::Pinned => Pool::Host,
        }
    }

    /// The default pool for results computed at a home.
    pub fn workplace(self) -> Pool {
        match self {
            Pool::Device => Pool::Device,
            Pool::Host | Pool::Pinned => Pool::Pinned,
        }
    }

    /// The queue of the processor that computes on this pool.
    pub fn queue(self) -> Queue {
        match self {
            Pool::Device => Queue::Compute,
            Pool::Host | Pool::Pinned => Queue::Host,
        }
    }
}

/// A queue runs its work in order. Only events order work on different queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Kernels of the device, on device memory.
    Compute,
    Copy,
    /// Operations that the host processor computes, on host memory.
    Host,
    /// Exchanges with other ranks, on device memory.
    Communication,
}

impl Queue {
    pub const ALL: [Queue; 4] = [Queue::Compute, Queue::Copy, Queue::Host, Queue::Communication];

    /// The device's queues, which accept copies.
    pub const OF_DEVICE: [Queue; 2] = [Queue::Compute, Queue::Copy];

    pub fn name(self) -> &'static str {
        match self {
            Queue::Compute => "compute",
            Queue::Copy => "copy",
            Queue::Host => "host",
            Queue::Communication => "communication",
        }
    }
}

/// An event's id within a program. Recording the event again replaces the earlier recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u32);

/// The id of captured work that a device can replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapturedGraph(pub u32);

/// The id of a device allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(pub u32);

/// A range of bytes in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub buffer: Buffer,
    pub offset: u64,
    pub bytes: u64,
}

/// A typed range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub buffer: Buffer,
    /// In bytes.
    pub offset: u64,
    pub ty: TensorType,
}

impl Tensor {
    pub fn region(&self) -> Region {
        Region { buffer: self.buffer, offset: self.offset, bytes: self.ty.bytes() }
    }
}

/// Why a device call failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// Returned by the allocator that enforces the target's limit. Devices do not enforce it.
    #[error("{bytes} more bytes in the {pool} pool exceed the memory limit", pool = pool.name())]
    BeyondLimit { pool: Pool, bytes: u64 },
    /// Returned by the operating system, the driver or one of its libraries; 0 bytes if the size is unknown.
    #[error("the system refused {bytes} more bytes for the {pool} pool", pool = pool.name())]
    OutOfMemory { pool: Pool, bytes: u64 },
    #[error("buffer {} is not allocated", buffer.0)]
    NoSuchBuffer { buffer: Buffer },
    #[error("{bytes} bytes at offset {offset} exceed buffer {} of {size} bytes", buffer.0)]
    OutOfBounds { buffer: Buffer, offset: u64, bytes: u64, size: u64 },
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error("buffer {} is not in host memory", buffer.0)]
    NotOfHost { buffer: Buffer },
    #[error("only the compute and the copy queue accept copies")]
    NoCopies,
    #[error("the device exchanges nothing with other ranks")]
    NoRanks,
    #[error("the device cannot reserve addresses without memory")]
    NoReservations,
    #[error("the device cannot capture graphs")]
    NoGraphs,
    /// A call into the driver or one of its libraries.
    #[error("{call} failed: {name} ({code})")]
    Call { call: String, name: String, code: u32 },
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("the device's queue stopped: {0}")]
    Lost(String),
    /// A stored matmul algorithm cannot be used again.
    #[error(
        "the algorithm stored with the run for matmul {product} {problem}; measure it again with --fresh"
    )]
    StoredChoice { product: String, problem: String },
}

/// The driver's counters of its device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverReading {
    /// In use now, by this process and all others.
    pub taken: u64,
    /// Peak use since `begin_external_reading`, minus the use at that time.
    pub peak: u64,
    /// The driver's reservation granularity, measured by `begin_external_reading`: the pool's peak is a multiple of it.
    pub step: u64,
}

/// A device and its host: memory pools and a compute queue on each, and a copy queue between them.
///
/// Calls enqueue work in call order. Only `synchronize`, `read` and `write` wait for it.
pub trait Device {
    fn target(&self) -> &Target;

    /// Notes for the user from opening the device, one line each.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Requests memory from the system. Its contents are unspecified.
    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError>;

    /// The same for memory that an allocator divides: a device whose driver has a pool of its own bypasses it.
    fn allocate_segment(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        self.allocate(pool, bytes)
    }

    /// Frees a buffer once the queued work is done.
    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Reserves addresses of the device pool without memory.
    ///
    /// # Errors
    /// `NoReservations`, or the device fails.
    fn reserve(&mut self, _bytes: u64) -> Result<Buffer, DeviceError> {
        Err(DeviceError::NoReservations)
    }

    /// Maps memory to part of a reservation, in multiples of 2 MiB. Its contents are unspecified.
    ///
    /// # Errors
    /// As `allocate`.
    fn commit(&mut self, _part: Region) -> Result<(), DeviceError> {
        Err(DeviceError::NoReservations)
    }

    /// Unmaps the memory of a committed part once the queued work is done.
    ///
    /// # Errors
    /// The device fails.
    fn decommit(&mut self, _part: Region) -> Result<(), DeviceError> {
        Err(DeviceError::NoReservations)
    }

    /// Copies between regions of equal size in any pools, on one of the device's queues.
    fn copy(&mut self, queue: Queue, from: Region, to: Region) -> Result<(), DeviceError>;

    /// Launches an operation whose operands all have one home: on the compute queue for device memory, on the host
    /// queue for host memory. The workspace has at least the size that the operation declares.
    fn launch(
        &mut self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: Option<Region>,
    ) -> Result<(), DeviceError>;

    /// Exchanges numbers with the other ranks, on the communication queue. All ranks enqueue the same exchanges in the same
    /// order. `from` and `to` are of one dtype: both are the whole in an all-reduce, in place; in the others one is a share of the
    /// whole ([`Collective`]).
    ///
    /// # Errors
    /// `NoRanks` if the device is that of a single rank.
    fn exchange(&mut self, _collective: Collective, _from: Tensor, _to: Tensor) -> Result<(), DeviceError> {
        Err(DeviceError::NoRanks)
    }

    /// Replaces a few numbers of the host by their sums over all ranks; as they are, if there is one rank.
    ///
    /// # Errors
    /// `Lost` if a rank does not arrive.
    fn sum_over_ranks(&mut self, _numbers: &mut [f64]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Gives the caller exclusive access to a region of host memory. No part of it may be lent already. Before each
    /// use, the holder waits for the work enqueued on the region.
    ///
    /// # Errors
    /// `NotOfHost` if the region is in device memory.
    fn lend(&mut self, region: Region) -> Result<HostSlice, DeviceError>;

    /// Records the event after all work enqueued on the queue so far.
    fn record(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError>;

    /// Makes later work on the queue wait for the recorded event.
    fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError>;

    /// Starts a capture: later work on the compute queue is recorded instead of run. No memory may be allocated or
    /// freed during the capture.
    ///
    /// # Errors
    /// `NoGraphs` if the device cannot replay graphs.
    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::NoGraphs)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// As `begin_capture`, or the driver rejects the captured work.
    fn end_capture(&mut self) -> Result<CapturedGraph, DeviceError> {
        Err(DeviceError::NoGraphs)
    }

    /// Enqueues captured work on the compute queue.
    ///
    /// # Errors
    /// As `begin_capture`.
    fn replay(&mut self, _graph: CapturedGraph) -> Result<(), DeviceError> {
        Err(DeviceError::NoGraphs)
    }

    /// Selects matmul algorithms for the operations that a program will launch: the stored choices, or else the fastest
    /// measured. Allocates and frees memory; must not be called during a capture.
    ///
    /// # Errors
    /// A stored choice was made for another card or other versions, or the library rejects it; the device fails.
    fn choose(&mut self, _work: &[Work], _stored: &[Choice]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The choices so far.
    fn choices(&self) -> Vec<Choice> {
        Vec::new()
    }

    /// Whether the hardware multiplies this type natively. Otherwise operands are converted to f32, which costs time.
    fn multiplies(&self, _dtype: DType) -> bool {
        true
    }

    /// Whether the compute queue has its own clock. An inline queue has none: the host's clock measures its calls.
    fn has_clock(&self) -> bool {
        false
    }

    /// Enqueues a reading of that clock after the work so far on the compute queue.
    ///
    /// # Errors
    /// The device fails.
    fn lap(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The times between consecutive `lap` readings since the previous call. Waits for the last reading.
    ///
    /// # Errors
    /// The device fails.
    fn laps(&mut self) -> Result<Vec<Duration>, DeviceError> {
        Ok(Vec::new())
    }

    /// The total duration of exchanges on the communication queue since the previous call, waits for other ranks
    /// included. Waits for them. `None` if the device does not time them.
    ///
    /// # Errors
    /// The device fails.
    fn exchanged(&mut self) -> Result<Option<Duration>, DeviceError> {
        Ok(None)
    }

    /// The total duration of copies on the copy queue since the previous call. Waits for them. A device with a clock
    /// times copies only after the first call. `None` if the device does not time copies.
    ///
    /// # Errors
    /// The device fails.
    fn copied(&mut self) -> Result<Option<Duration>, DeviceError> {
        Ok(None)
    }

    /// Returns once all enqueued work is done.
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// Overwrites a region with the debugging pattern, in compute queue order, so that reads of freed memory give wrong
    /// numbers.
    fn poison(&mut self, region: Region) -> Result<(), DeviceError>;

    /// Writes bytes to memory after the work enqueued so far.
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads bytes from memory after the work enqueued so far.
    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Starts an external reading: the driver's memory counters, from the end of the work enqueued so far. `false` if
    /// the device has no such counters.
    fn begin_external_reading(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// The driver's counters after the work enqueued so far. `None` if the device has none.
    fn external_reading(&mut self) -> Result<Option<DriverReading>, DeviceError> {
        Ok(None)
    }
}
