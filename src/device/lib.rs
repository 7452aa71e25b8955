//! Machines that hold memory and run operations. Knows no models and no strategies.

mod check;
mod choice;
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
pub use cpu::{CpuDevice, Delay, described as described_processor, target as cpu_target};
pub use cpu::{LEAST_PRODUCT_WORKSPACE_PER_THREAD, OPERAND_ALIGNMENT};
pub use cpu::{from_f32, to_f32};
pub use cuda::{
    Card, CudaDevice, Equipment, Found, Inventory, KernelCompiler, KernelReport, MissingLibrary,
    OLDEST as OLDEST_CARD, RegistersLock, SourceReport, Unavailable, Version, equip, inventory,
    target as described_card,
};
pub use cuda::{emulate_delay, emulate_way};
pub use known::{ASSUMED_CONTEXT, KNOWN_CARDS, KnownCard};
pub use ledger::{Ledger, Peak, Phase, Position, Usage};
pub use lent::Lent;
pub use open::{DetectError, Detected, DeviceChoice, detect, find, open, open_card};
pub use probe::{ProbeError, Probed, in_child as probe_in_child, this_program};
pub use rank::Rank;
pub use rates::{Factors, Rates, measure as measure_rates, product as measure_product};
pub use role::{ByRole, Role};
pub use target::{DeviceKind, Figures, Limits, Target};

/// Where a value lives. As the home of an operation, `Device` and `Host` stand for the processors whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    Device,
    /// Pageable memory of the host: who copies between it and a card waits for that.
    Host,
    /// Memory of the host that the system leaves where it is, so that the copy queue reads and writes it by itself.
    Pinned,
}

impl Pool {
    pub const ALL: [Pool; 3] = [Pool::Device, Pool::Host, Pool::Pinned];

    /// Each has a limit of its own, for all of its pools together.
    pub const HOMES: [Pool; 2] = [Pool::Device, Pool::Host];

    pub fn name(self) -> &'static str {
        match self {
            Pool::Device => "device",
            Pool::Host => "host",
            Pool::Pinned => "pinned host",
        }
    }

    /// Whose memory it is: the device's or the host's.
    pub fn home(self) -> Pool {
        match self {
            Pool::Device => Pool::Device,
            Pool::Host | Pool::Pinned => Pool::Host,
        }
    }

    /// Of a home: where what is computed there lives, if nothing else is said.
    pub fn workplace(self) -> Pool {
        match self {
            Pool::Device => Pool::Device,
            Pool::Host | Pool::Pinned => Pool::Pinned,
        }
    }

    /// Where the processor that it belongs to is given its work.
    pub fn queue(self) -> Queue {
        match self {
            Pool::Device => Queue::Compute,
            Pool::Host | Pool::Pinned => Queue::Host,
        }
    }
}

/// Work is done in order within a queue and in any order between queues, but for events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// What the device computes, on memory of the device.
    Compute,
    Copy,
    /// What the host's processor computes, on memory of the host.
    Host,
}

impl Queue {
    pub const ALL: [Queue; 3] = [Queue::Compute, Queue::Copy, Queue::Host];

    /// Those of the device, which copies go through.
    pub const OF_DEVICE: [Queue; 2] = [Queue::Compute, Queue::Copy];

    pub fn name(self) -> &'static str {
        match self {
            Queue::Compute => "compute",
            Queue::Copy => "copy",
            Queue::Host => "host",
        }
    }
}

/// Names an event of a program. Recording it again replaces what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u32);

/// Names a stretch of work that a device can replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapturedGraph(pub u32);

/// Names memory that a device handed out.
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

/// Why a device did not do what it was asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DeviceError {
    /// Said by who keeps to the target's limit: a device gives what it has.
    #[error("the limit has no room for {bytes} more bytes in the {pool} pool", pool = pool.name())]
    BeyondLimit { pool: Pool, bytes: u64 },
    /// Said by the system.
    #[error("the system refused {bytes} more bytes for the {pool} pool", pool = pool.name())]
    OutOfMemory { pool: Pool, bytes: u64 },
    #[error("buffer {} is not allocated", buffer.0)]
    NoSuchBuffer { buffer: Buffer },
    #[error("{bytes} bytes at offset {offset} do not lie within buffer {} of {size} bytes", buffer.0)]
    OutOfBounds { buffer: Buffer, offset: u64, bytes: u64, size: u64 },
    #[error(transparent)]
    Type(#[from] TypeError),
    #[error("buffer {} is no memory of the host's", buffer.0)]
    NotOfHost { buffer: Buffer },
    #[error("the host's queue takes no copies")]
    NoCopies,
    #[error("the device has no addresses without memory behind them")]
    NoReservations,
    #[error("the device has no graphs to capture work in")]
    NoGraphs,
    /// A call into the driver or one of its libraries.
    #[error("{call} failed: {name} ({code})")]
    Call { call: String, name: String, code: u32 },
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("the device's queue stopped: {0}")]
    Lost(String),
    /// What a run was computed with cannot be used again.
    #[error(
        "the algorithm stored with the run for product {product} {problem}; measure it again with --fresh"
    )]
    StoredChoice { product: String, problem: String },
}

/// What a driver counts of its device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalReading {
    /// Taken now, by this process and any other.
    pub taken: u64,
    /// What was taken at the most since the witness began, over what was then.
    pub peak: u64,
    /// What the driver reserves at a time, learnt when the witness began: a peak is a multiple of it.
    pub step: u64,
}

/// A device and its host: memory in the pools of each, operations on either, a queue for what each computes and one for copies.
///
/// Calls enqueue work in the order they are made. Only `synchronize`, `read` and `write` wait for it.
pub trait Device {
    fn target(&self) -> &Target;

    /// What the user should know of how it was opened, a line each.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Asks the backing store for memory of its own. What it holds is unspecified.
    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError>;

    /// Gives a buffer back, once the work that is queued has been done.
    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError>;

    /// Takes addresses of the device pool with no memory behind them.
    ///
    /// # Errors
    /// A device that has none to give.
    fn reserve(&mut self, _bytes: u64) -> Result<Buffer, DeviceError> {
        Err(DeviceError::NoReservations)
    }

    /// Asks the backing store for memory behind a part of what was reserved, in multiples of 2 MiB. What it holds is unspecified.
    ///
    /// # Errors
    /// As from `allocate`.
    fn commit(&mut self, _part: Region) -> Result<(), DeviceError> {
        Err(DeviceError::NoReservations)
    }

    /// Gives back the memory behind a part, as it was committed, once the work that is queued has been done.
    ///
    /// # Errors
    /// A device that fails.
    fn decommit(&mut self, _part: Region) -> Result<(), DeviceError> {
        Err(DeviceError::NoReservations)
    }

    /// Copies between regions of equal size, of any pools, on one of the device's queues.
    fn copy(&mut self, queue: Queue, from: Region, to: Region) -> Result<(), DeviceError>;

    /// Runs an operation where its operands live, all with one home: those of the device on the compute queue, those of the
    /// host on the host's. The workspace is as large as the operation declares.
    fn launch(
        &mut self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: Option<Region>,
    ) -> Result<(), DeviceError>;

    /// Lends a region of the host's memory to who fills it: no part of it may be lent already, and who holds it waits for what
    /// was enqueued on it before using it again.
    ///
    /// # Errors
    /// It is no memory of the host's.
    fn lend(&mut self, region: Region) -> Result<Lent, DeviceError>;

    /// The event stands for all work enqueued on the queue so far.
    fn record(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError>;

    /// Later work on the queue waits until what the event stands for is done.
    fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError>;

    /// From now on, what is enqueued on the compute queue is written down and not done. Memory may neither be
    /// allocated nor given back meanwhile.
    ///
    /// # Errors
    /// A device that cannot replay: programs for it have nothing to capture.
    fn begin_capture(&mut self) -> Result<(), DeviceError> {
        Err(DeviceError::NoGraphs)
    }

    /// Ends what `begin_capture` began.
    ///
    /// # Errors
    /// As for `begin_capture`, or a driver that takes the work not as a graph.
    fn end_capture(&mut self) -> Result<CapturedGraph, DeviceError> {
        Err(DeviceError::NoGraphs)
    }

    /// Enqueues on the compute queue what was captured.
    ///
    /// # Errors
    /// As for `begin_capture`.
    fn replay(&mut self, _graph: CapturedGraph) -> Result<(), DeviceError> {
        Err(DeviceError::NoGraphs)
    }

    /// Chooses how it does what it has several ways for, among the operations that a program will launch: as `stored`
    /// says, or else by time. It takes memory and gives it back, and must not be called while work is captured.
    ///
    /// # Errors
    /// A stored choice that was made for another card or other versions, or that a library does not take; a device that
    /// fails.
    fn choose(&mut self, _work: &[Work], _stored: &[Choice]) -> Result<(), DeviceError> {
        Ok(())
    }

    /// What it has chosen so far.
    fn choices(&self) -> Vec<Choice> {
        Vec::new()
    }

    /// Whether it has units that multiply numbers of this type; otherwise they are widened to f32, which costs time.
    fn multiplies(&self, _dtype: DType) -> bool {
        true
    }

    /// Whether the compute queue has a clock of its own. One that works inline has none: there, the host's says what
    /// a call took.
    fn has_clock(&self) -> bool {
        false
    }

    /// Has that clock read once the work enqueued so far on the compute queue is done.
    ///
    /// # Errors
    /// A device that fails.
    fn lap(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The time from each `lap` to the next, since this was last called; waits for the last.
    ///
    /// # Errors
    /// A device that fails.
    fn laps(&mut self) -> Result<Vec<Duration>, DeviceError> {
        Ok(Vec::new())
    }

    /// What the copies of the copy queue took since this was last asked, from the beginning of each to its end; waits for
    /// them. A device with a clock times them once it was asked for the first time. `None` where nothing times them.
    ///
    /// # Errors
    /// A device that fails.
    fn copied(&mut self) -> Result<Option<Duration>, DeviceError> {
        Ok(None)
    }

    /// Returns once all enqueued work is done.
    fn synchronize(&mut self) -> Result<(), DeviceError>;

    /// Overwrites a region with the debugging pattern, in the compute queue's order: reading freed memory then
    /// shows as wrong numbers.
    fn poison(&mut self, region: Region) -> Result<(), DeviceError>;

    /// Puts bytes into memory, after the work enqueued so far.
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Takes bytes out of memory, after the work enqueued so far.
    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Has the device's driver count the memory that is taken from now on, after the work enqueued so far. `false`
    /// where there is no driver that counts.
    fn begin_witness(&mut self) -> Result<bool, DeviceError> {
        Ok(false)
    }

    /// What the driver counted, after the work enqueued so far. `None` where there is none.
    fn witness(&mut self) -> Result<Option<ExternalReading>, DeviceError> {
        Ok(None)
    }
}
