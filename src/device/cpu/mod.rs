//! The CPU device: the default and the reference.
//!
//! Operations run inline on all threads, on any pool; the copy queue has its own thread. Every request to the system is
//! a separate populated anonymous mapping, so that the process's resident set is an external reading of the same
//! memory.

// Kernels and queues access memory by address: each use states why it is sound.
#![allow(unsafe_code)]

mod group;
mod host;
mod kernels;
mod mapping;
mod processor;
mod queues;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use self::group::Exchange;
use self::kernels::{Operand, Workers};
use self::queues::{Command, CpuQueues, Fence};
use super::check::{check, common_home};
use super::{Buffer, Collective, Device, DeviceError, Event, HostSlice, Pool, Queue, Region, Target, Tensor};
use ops::{DType, Op};

pub use self::group::{RankGroup, SharedMemory};
pub use self::host::{described, target};
pub use self::kernels::{LEAST_PRODUCT_WORKSPACE_PER_THREAD, OPERAND_ALIGNMENT};
pub use self::kernels::{from_f32, to_f32};
pub(super) use self::mapping::Mapping;
pub(super) use self::processor::HostProcessor;
pub use self::queues::Delay;

/// Required alignment of operands, in bytes.
const ALIGNMENT: u64 = 64;

/// The CPU as a device.
pub struct CpuDevice {
    target: Target,
    mappings: HashMap<Buffer, (Pool, Arc<Mapping>)>,
    next: u32,
    queues: CpuQueues,
    events: HashMap<Event, Arc<Fence>>,
}

impl CpuDevice {
    /// # Errors
    /// `Lost` if no thread can be started.
    pub fn new(target: Target) -> Result<CpuDevice, DeviceError> {
        CpuDevice::with(target, None, None)
    }

    /// A device that exchanges numbers with those of other ranks, and one that delays a queue's work for as long as the
    /// program's events allow, so that a missing event causes wrong numbers.
    ///
    /// # Errors
    /// `Lost` if no thread can be started.
    pub fn with(
        target: Target,
        delay: Option<Delay>,
        group: Option<RankGroup>,
    ) -> Result<CpuDevice, DeviceError> {
        let workers = Workers::new(target.threads).map_err(DeviceError::Lost)?;
        let queues = CpuQueues::new(workers, delay, group)
            .map_err(|error| DeviceError::Lost(format!("no thread could be started: {error}")))?;
        Ok(CpuDevice { target, mappings: HashMap::new(), next: 0, queues, events: HashMap::new() })
    }

    fn add(&mut self, pool: Pool, mapping: Mapping) -> Buffer {
        let buffer = Buffer(self.next);
        self.next += 1;
        self.mappings.insert(buffer, (pool, Arc::new(mapping)));
        buffer
    }

    fn mapping(&self, region: Region) -> Result<&Arc<Mapping>, DeviceError> {
        let Region { buffer, offset, bytes } = region;
        let (_, mapping) = self.mappings.get(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        let size = mapping.bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds { buffer, offset, bytes, size });
        }
        Ok(mapping)
    }

    /// The common home of an operation's operands.
    fn home(&self, op: &Op, buffers: impl Iterator<Item = Buffer>) -> Result<Pool, DeviceError> {
        common_home(op, buffers, |buffer| self.mappings.get(&buffer).map(|(pool, _)| *pool))
    }

    fn operands(
        &self,
        tensors: &[Tensor],
        keep: &mut Vec<Arc<Mapping>>,
    ) -> Result<Vec<Operand>, DeviceError> {
        tensors
            .iter()
            .map(|tensor| {
                let mapping = self.mapping(tensor.region())?;
                if keep.last().is_none_or(|last| !Arc::ptr_eq(last, mapping)) {
                    keep.push(mapping.clone());
                }
                Ok(Operand { address: mapping.address(tensor.offset), ty: tensor.ty })
            })
            .collect()
    }
}

impl Device for CpuDevice {
    fn target(&self) -> &Target {
        &self.target
    }

    fn multiplies(&self, dtype: DType) -> bool {
        self.queues.workers().multiply(dtype)
    }

    fn allocate(&mut self, pool: Pool, bytes: u64) -> Result<Buffer, DeviceError> {
        let mapping = Mapping::new(pool, bytes)?;
        Ok(self.add(pool, mapping))
    }

    /// Queued work keeps the mapping until it is done.
    fn free(&mut self, buffer: Buffer) -> Result<(), DeviceError> {
        self.mappings.remove(&buffer).map(drop).ok_or(DeviceError::NoSuchBuffer { buffer })
    }

    fn reserve(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        let mapping = Mapping::reserve(Pool::Device, bytes)?;
        Ok(self.add(Pool::Device, mapping))
    }

    fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.mapping(part)?.commit(Pool::Device, part.offset, part.bytes)
    }

    fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        self.queues.synchronize()?;
        self.mapping(part)?.decommit(Pool::Device, part.offset, part.bytes)
    }

    fn copy(&mut self, queue: Queue, from: Region, to: Region) -> Result<(), DeviceError> {
        if !Queue::OF_DEVICE.contains(&queue) {
            return Err(DeviceError::NoCopies);
        }
        let (source, sink) = (self.mapping(from)?, self.mapping(to)?);
        if from.bytes != to.bytes {
            let size = to.bytes;
            return Err(DeviceError::OutOfBounds {
                buffer: to.buffer,
                offset: to.offset,
                bytes: from.bytes,
                size,
            });
        }
        let command = Command::Copy {
            from: source.address(from.offset),
            to: sink.address(to.offset),
            bytes: from.bytes as usize,
            _keep: [source.clone(), sink.clone()],
        };
        self.queues.enqueue(queue, command)
    }

    fn launch(
        &mut self,
        op: &Op,
        inputs: &[Tensor],
        outputs: &[Tensor],
        workspace: Option<Region>,
    ) -> Result<(), DeviceError> {
        let home = self.home(op, inputs.iter().chain(outputs).map(|tensor| tensor.buffer))?;
        check(op, inputs, outputs, workspace, (&self.target, home), ALIGNMENT)?;
        let mut keep = Vec::with_capacity(4);
        let inputs = self.operands(inputs, &mut keep)?;
        let outputs = self.operands(outputs, &mut keep)?;
        let workspace = match workspace {
            Some(region) => {
                let mapping = self.mapping(region)?;
                keep.push(mapping.clone());
                Some((mapping.address(region.offset), region.bytes as usize))
            }
            None => None,
        };
        let launch = queues::Launch { op: op.clone(), inputs, outputs, workspace, _keep: keep };
        self.queues.enqueue(home.queue(), Command::Launch(Box::new(launch)))
    }

    fn exchange(&mut self, collective: Collective, from: Tensor, to: Tensor) -> Result<(), DeviceError> {
        let group = self.queues.group().ok_or(DeviceError::NoRanks)?.clone();
        let [source, target] = [from, to].map(|tensor| self.mapping(tensor.region()).cloned());
        let (source, target) = (source?, target?);
        let exchange = Exchange {
            collective,
            dtype: to.ty.dtype,
            from: source.address(from.region().offset),
            to: target.address(to.region().offset),
            bytes: from.ty.bytes().max(to.ty.bytes()) as usize,
        };
        let command = Command::Exchange { exchange, group, _keep: [source, target] };
        self.queues.enqueue(Queue::Communication, command)
    }

    fn sum_over_ranks(&mut self, numbers: &mut [f64]) -> Result<(), DeviceError> {
        let Some(group) = self.queues.group().cloned() else { return Ok(()) };
        self.queues.synchronize()?;
        group.sum(numbers)
    }

    fn exchanged(&mut self) -> Result<Option<Duration>, DeviceError> {
        self.queues.synchronize()?;
        Ok(self.queues.group().map(|_| self.queues.take_exchange_time()))
    }

    fn lend(&mut self, region: Region) -> Result<HostSlice, DeviceError> {
        let Region { buffer, offset, bytes } = region;
        let mapping = self.mapping(region)?;
        if self.mappings.get(&buffer).is_some_and(|(pool, _)| pool.home() == Pool::Device) {
            return Err(DeviceError::NotOfHost { buffer });
        }
        // SAFETY: it lies within the mapping, all of which is resident; the caller guarantees the rest.
        #[allow(unsafe_code)]
        Ok(unsafe { HostSlice::new(mapping.address(offset), bytes, mapping.clone()) })
    }

    fn record(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        let fence = Arc::new(Fence::default());
        self.events.insert(event, fence.clone());
        self.queues.enqueue(queue, Command::Record(fence))
    }

    /// Waiting for an event that was never recorded returns at once, as in CUDA.
    fn wait(&mut self, queue: Queue, event: Event) -> Result<(), DeviceError> {
        match self.events.get(&event) {
            Some(fence) => self.queues.enqueue(queue, Command::Wait(fence.clone())),
            None => Ok(()),
        }
    }

    fn synchronize(&mut self) -> Result<(), DeviceError> {
        self.queues.synchronize()
    }

    fn copied(&mut self) -> Result<Option<Duration>, DeviceError> {
        self.queues.synchronize()?;
        Ok(Some(self.queues.take_copy_time()))
    }

    fn poison(&mut self, region: Region) -> Result<(), DeviceError> {
        let mapping = self.mapping(region)?;
        let command = Command::Poison {
            address: mapping.address(region.offset),
            bytes: region.bytes as usize,
            _keep: mapping.clone(),
        };
        self.queues.enqueue(Queue::Compute, command)
    }

    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), DeviceError> {
        self.queues.synchronize()?;
        let mapping = self.mapping(region)?;
        let count = bytes.len().min(region.bytes as usize);
        // SAFETY: the region lies within the mapping, and nothing else uses it after `synchronize`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), mapping.address(region.offset), count) };
        Ok(())
    }

    fn read(&mut self, region: Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.queues.synchronize()?;
        let mapping = self.mapping(region)?;
        let count = bytes.len().min(region.bytes as usize);
        // SAFETY: the region lies within the mapping, and nothing else uses it after `synchronize`.
        unsafe { std::ptr::copy_nonoverlapping(mapping.address(region.offset), bytes.as_mut_ptr(), count) };
        Ok(())
    }
}
