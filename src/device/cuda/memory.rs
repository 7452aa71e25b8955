//! Card memory from the driver and from a private stream-ordered pool, pinned and pageable host memory, and the
//! driver's memory counters.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::calls::driver::{self as sys, CUmemPool_attribute_enum as Attribute};
use super::driver::{Context, check};
use super::errors::CallError;
use super::queue_order::SequenceNumber;
use super::queues::Queues;
use super::reservation::{PAGE, Reservation};
use crate::cpu::Mapping;
use crate::{Buffer, DeviceError, DriverReading, HostSlice, Pool, Queue, Region};

/// A buffer's memory.
#[derive(Clone, Copy)]
struct Allocation {
    pool: Pool,
    /// Device pool: a card address. Pinned memory: one address for card and host. Pageable memory: a host address,
    /// which the driver's copies accept.
    address: u64,
    bytes: u64,
    /// Whether it is card memory outside the pool.
    is_segment: bool,
    /// Position in the compute queue at the allocation.
    allocated_at: SequenceNumber,
    /// Positions of the last uses in the copy queue and in the communication queue.
    last_copy: SequenceNumber,
    last_exchange: SequenceNumber,
}

/// All buffers of a device. Dropped before its context.
pub(super) struct DeviceMemory {
    pool: sys::CUmemoryPool,
    buffers: HashMap<Buffer, Allocation>,
    next: u32,
    /// Addresses of freed host memory that queues may still use. Returning it to the system waits for the device, so it
    /// is postponed to the next synchronisation.
    retired: Vec<u64>,
    /// Pageable memory by address, kept until no queue can use it.
    pageable: HashMap<u64, Mapping>,
    /// Lent host memory by address. It stays mapped while a part is lent.
    lent: HashMap<u64, Arc<()>>,
    /// Reservations of buffers whose pages are committed separately.
    reservations: HashMap<Buffer, Reservation>,
    reading: Option<ExternalCounter>,
}

/// The driver's counters at the start of an external reading, and since.
#[derive(Clone, Copy)]
struct ExternalCounter {
    /// The pool's reservation granularity, which depends on the driver and is undocumented.
    step: u64,
    free: u64,
    /// Peak of the card memory in use outside the pool.
    outside_pool: u64,
}

impl DeviceMemory {
    /// In the current context.
    pub(super) fn new(context: &Context) -> Result<DeviceMemory, CallError> {
        let pool = create_pool(context)?;
        let (buffers, pageable, lent) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (retired, reservations) = (Vec::new(), HashMap::new());
        let memory =
            DeviceMemory { pool, buffers, next: 0, retired, pageable, lent, reservations, reading: None };
        // Freed memory stays in the pool for the next request: mapping it in every step would take longer than the
        // step.
        set_pool_attribute(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        Ok(memory)
    }

    pub(super) fn allocate(
        &mut self,
        pool: Pool,
        bytes: u64,
        queues: &mut Queues,
    ) -> Result<Buffer, DeviceError> {
        let size = bytes.max(1) as usize;
        let allocated = match pool {
            Pool::Device => allocate_from(self.pool, size, queues),
            Pool::Pinned => allocate_pinned(size),
            Pool::Host => return self.allocate_pageable(bytes),
        };
        let address = allocated.map_err(|failed| {
            if failed.is_out_of_memory() { DeviceError::OutOfMemory { pool, bytes } } else { failed.into() }
        })?;
        let allocated_at = if pool == Pool::Device { queues.order.advance(Queue::Compute) } else { 0 };
        Ok(self.add(Allocation {
            pool,
            address,
            bytes,
            is_segment: false,
            allocated_at,
            last_copy: 0,
            last_exchange: 0,
        }))
    }

    /// Allocates card memory outside the pool, as PyTorch's allocator does: pools round reservations up and may leave
    /// gaps between them.
    pub(super) fn allocate_segment(
        &mut self,
        bytes: u64,
        queues: &mut Queues,
    ) -> Result<Buffer, DeviceError> {
        let mut address = 0;
        // SAFETY: a context is current.
        let mut request =
            || check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) });
        let mut allocated = request();
        if allocated.as_ref().is_err_and(CallError::is_out_of_memory) {
            // The pool keeps the memory of freed buffers.
            queues.synchronize()?;
            self.trim()?;
            allocated = request();
        }
        allocated.map_err(|failed| match failed.is_out_of_memory() {
            true => DeviceError::OutOfMemory { pool: Pool::Device, bytes },
            false => failed.into(),
        })?;
        let pool = Pool::Device;
        Ok(self.add(Allocation {
            pool,
            address,
            bytes,
            is_segment: true,
            allocated_at: 0,
            last_copy: 0,
            last_exchange: 0,
        }))
    }

    fn allocate_pageable(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        let mapping = Mapping::new(Pool::Host, bytes)?;
        let address = mapping.address(0) as u64;
        self.pageable.insert(address, mapping);
        Ok(self.add(Allocation {
            pool: Pool::Host,
            address,
            bytes,
            is_segment: false,
            allocated_at: 0,
            last_copy: 0,
            last_exchange: 0,
        }))
    }

    /// Reserves card addresses in the current context.
    pub(super) fn reserve(&mut self, bytes: u64, context: &Context) -> Result<Buffer, DeviceError> {
        let reservation = Reservation::new(context, bytes)?;
        let address = reservation.address();
        let buffer = self.add(Allocation {
            pool: Pool::Device,
            address,
            bytes,
            is_segment: false,
            allocated_at: 0,
            last_copy: 0,
            last_exchange: 0,
        });
        self.reservations.insert(buffer, reservation);
        Ok(buffer)
    }

    /// Maps memory to part of a reservation.
    pub(super) fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        let pages = part.offset..part.offset + part.bytes;
        self.reservation(part)?.commit(pages).map_err(|failed| match failed.is_out_of_memory() {
            true => DeviceError::OutOfMemory { pool: Pool::Device, bytes: part.bytes },
            false => failed.into(),
        })
    }

    /// Unmaps the memory of a part. The queues are idle.
    pub(super) fn decommit(&mut self, part: Region) -> Result<(), DeviceError> {
        let pages = part.offset..part.offset + part.bytes;
        Ok(self.reservation(part)?.decommit(pages)?)
    }

    fn reservation(&mut self, part: Region) -> Result<&mut Reservation, DeviceError> {
        self.find(part)?;
        let buffer = part.buffer;
        self.reservations.get_mut(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })
    }

    fn add(&mut self, allocation: Allocation) -> Buffer {
        let buffer = Buffer(self.next);
        self.next += 1;
        self.buffers.insert(buffer, allocation);
        buffer
    }

    /// Frees a buffer once the queued work that uses it is done. A reservation may be freed only when the queues are
    /// idle.
    pub(super) fn free(&mut self, buffer: Buffer, queues: &mut Queues) -> Result<(), DeviceError> {
        let allocation = *self.buffers.get(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        match allocation.pool {
            Pool::Device if self.reservations.remove(&buffer).is_some() => {}
            Pool::Host | Pool::Pinned => self.retired.push(allocation.address),
            Pool::Device if allocation.is_segment => {
                queues.synchronize()?;
                // SAFETY: allocated once, freed once; no queue uses it.
                check("cuMemFree", unsafe { sys::cuMemFree_v2(allocation.address) })?;
            }
            Pool::Device => {
                queues.follow(Queue::Compute, Queue::Copy, allocation.last_copy)?;
                queues.follow(Queue::Compute, Queue::Communication, allocation.last_exchange)?;
                let stream = queues.stream(Queue::Compute);
                // SAFETY: allocated once, freed once; the stream waits for all uses of the memory.
                let status = unsafe { sys::cuMemFreeAsync(allocation.address, stream) };
                check("cuMemFreeAsync", status)?;
            }
        }
        self.buffers.remove(&buffer);
        Ok(())
    }

    pub(super) fn pool_of(&self, buffer: Buffer) -> Option<Pool> {
        self.buffers.get(&buffer).map(|allocation| allocation.pool)
    }

    /// A region's address and pool.
    ///
    /// # Errors
    /// The region is not within a buffer.
    pub(super) fn find(&self, region: Region) -> Result<(u64, Pool), DeviceError> {
        let Region { buffer, offset, bytes } = region;
        let allocation = self.buffers.get(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        let size = allocation.bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds { buffer, offset, bytes, size });
        }
        Ok((allocation.address + offset, allocation.pool))
    }

    /// Lends a region of host memory.
    ///
    /// # Errors
    /// The region is not in host memory, or not within a buffer.
    pub(super) fn lend(&mut self, region: Region) -> Result<HostSlice, DeviceError> {
        let (address, pool) = self.find(region)?;
        if pool == Pool::Device {
            return Err(DeviceError::NotOfHost { buffer: region.buffer });
        }
        let keep = self.lent.entry(address - region.offset).or_default().clone();
        // SAFETY: it lies within mapped host memory; the caller of `Device::lend` guarantees the rest.
        #[allow(unsafe_code)]
        Ok(unsafe { HostSlice::new(address as *mut u8, region.bytes, keep) })
    }

    /// Whether part of the memory at an address is lent.
    fn is_lent(&self, address: u64) -> bool {
        self.lent.get(&address).is_some_and(|keep| Arc::strong_count(keep) > 1)
    }

    /// Makes the copy queue wait for a buffer's allocation, and records the use.
    pub(super) fn prepare_copy(&mut self, buffer: Buffer, queues: &mut Queues) -> Result<(), DeviceError> {
        let allocation = self.buffers.get_mut(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        queues.follow(Queue::Copy, Queue::Compute, allocation.allocated_at)?;
        allocation.last_copy = queues.order.advance(Queue::Copy);
        Ok(())
    }

    /// The same for the communication queue.
    pub(super) fn prepare_exchange(
        &mut self,
        buffer: Buffer,
        queues: &mut Queues,
    ) -> Result<(), DeviceError> {
        let allocation = self.buffers.get_mut(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        queues.follow(Queue::Communication, Queue::Compute, allocation.allocated_at)?;
        allocation.last_exchange = queues.order.advance(Queue::Communication);
        Ok(())
    }

    /// Returns freed host memory to the system. The queues are idle.
    pub(super) fn release_retired(&mut self) -> Result<(), CallError> {
        while let Some(index) = self.retired.iter().position(|&address| !self.is_lent(address)) {
            let address = self.retired.swap_remove(index);
            self.lent.remove(&address);
            if self.pageable.remove(&address).is_some() {
                continue;
            }
            // SAFETY: allocated once, freed once; no queue uses it.
            check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address as *mut c_void) })?;
        }
        Ok(())
    }

    /// Returns the pool's unused memory to the system. The queues are idle.
    pub(super) fn trim(&mut self) -> Result<(), CallError> {
        // SAFETY: the pool is live.
        check("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(self.pool, 0) })
    }

    /// Starts an external reading relative to the current counters. The queues are idle.
    pub(super) fn begin_external_reading(
        &mut self,
        context: &Context,
        queues: &Queues,
    ) -> Result<(), CallError> {
        let step = reservation_granularity(context, queues)?;
        self.trim()?;
        // 0 resets the high-water mark; the driver rejects any other value.
        set_pool_attribute(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        let free = context.free_and_total()?.0
            + pool_attribute(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        self.reading = Some(ExternalCounter { step, free, outside_pool: 0 });
        Ok(())
    }

    /// Samples the driver's counters.
    pub(super) fn sample(&mut self, context: &Context) -> Result<(), CallError> {
        let Some(start) = self.reading else { return Ok(()) };
        let reserved = pool_attribute(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let taken = start.free.saturating_sub(context.free_and_total()?.0);
        let outside_pool = start.outside_pool.max(taken.saturating_sub(reserved));
        self.reading = Some(ExternalCounter { outside_pool, ..start });
        Ok(())
    }

    /// The pool's high-water mark plus the sampled peak of memory outside the pool. `None` before `begin_external_reading`.
    pub(super) fn reading(&mut self, context: &Context) -> Result<Option<DriverReading>, CallError> {
        self.sample(context)?;
        let Some(ExternalCounter { step, outside_pool, .. }) = self.reading else { return Ok(None) };
        let (free, total) = context.free_and_total()?;
        let reserved = pool_attribute(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        let step = if reserved == 0 { PAGE } else { step };
        Ok(Some(DriverReading { taken: total - free, peak: reserved + outside_pool, step }))
    }
}

/// Creates a pool on the card of the current context.
fn create_pool(context: &Context) -> Result<sys::CUmemoryPool, CallError> {
    let properties = sys::CUmemPoolProps {
        allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.device,
        },
        win32SecurityAttributes: std::ptr::null_mut(),
        maxSize: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let mut pool = std::ptr::null_mut();
    // SAFETY: a context is current; the properties are of a pool on its device.
    check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut pool, &properties) })?;
    Ok(pool)
}

/// The reservation granularity: the bytes that a new pool reserves for its first byte.
fn reservation_granularity(context: &Context, queues: &Queues) -> Result<u64, CallError> {
    let pool = create_pool(context)?;
    let reserved = allocate_from(pool, 1, queues).and_then(|address| {
        let reserved = pool_attribute(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        // SAFETY: allocated once, freed once, never used.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })?;
        reserved
    });
    // SAFETY: created once, destroyed once.
    check("cuMemPoolDestroy", unsafe { sys::cuMemPoolDestroy(pool) })?;
    reserved
}

fn allocate_from(pool: sys::CUmemoryPool, size: usize, queues: &Queues) -> Result<u64, CallError> {
    let (mut address, stream) = (0, queues.stream(Queue::Compute));
    // SAFETY: pool and stream are live.
    let status = unsafe { sys::cuMemAllocFromPoolAsync(&mut address, size, pool, stream) };
    check("cuMemAllocFromPoolAsync", status)?;
    Ok(address)
}

fn pool_attribute(pool: sys::CUmemoryPool, attribute: Attribute) -> Result<u64, CallError> {
    let mut value: u64 = 0;
    let pointer: *mut u64 = &mut value;
    // SAFETY: the pool is live; the attributes read here are 64 bits wide.
    let status = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, pointer.cast()) };
    check("cuMemPoolGetAttribute", status)?;
    Ok(value)
}

fn set_pool_attribute(
    pool: sys::CUmemoryPool,
    attribute: Attribute,
    mut value: u64,
) -> Result<(), CallError> {
    let pointer: *mut u64 = &mut value;
    // SAFETY: the pool is live; the attributes set here are 64 bits wide.
    let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, pointer.cast()) };
    check("cuMemPoolSetAttribute", status)
}

fn allocate_pinned(size: usize) -> Result<u64, CallError> {
    let mut address = std::ptr::null_mut();
    // Not write-combined: reads would be slow.
    // SAFETY: a context is current.
    check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, size, 0) })?;
    Ok(address as u64)
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Frees fail only in a lost context, which has already freed everything.
        let _ = self.release_retired();
        for buffer in self.reservations.keys() {
            self.buffers.remove(buffer);
        }
        self.reservations.clear();
        let kept: Vec<u64> = self.lent.keys().copied().filter(|&address| self.is_lent(address)).collect();
        for address in &kept {
            // Leaked: a holder may still write to it.
            if let Some(mapping) = self.pageable.remove(address) {
                std::mem::forget(mapping);
            }
        }
        for allocation in self.buffers.values().filter(|allocation| !kept.contains(&allocation.address)) {
            // SAFETY: allocated once, freed once; the device has waited for its queues.
            let _ = unsafe {
                match allocation.pool {
                    Pool::Device => sys::cuMemFree_v2(allocation.address),
                    Pool::Pinned => sys::cuMemFreeHost(allocation.address as *mut c_void),
                    // Unmapped with its `Mapping`.
                    Pool::Host => continue,
                }
            };
        }
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cuMemPoolDestroy(self.pool) };
    }
}
