//! Memory of the card, from a pool of its own in the compute queue's order, and memory of the host, pinned and pageable.
//! Beside them, what the driver counts of it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use super::calls::driver::{self as sys, CUmemPool_attribute_enum as Attribute};
use super::driver::{Context, check};
use super::errors::Failed;
use super::order::Moment;
use super::queues::Queues;
use super::reservation::Reservation;
use crate::cpu::Mapping;
use crate::{Buffer, DeviceError, ExternalReading, Lent, Pool, Queue, Region};

/// A buffer's memory.
#[derive(Clone, Copy)]
struct Allocation {
    pool: Pool,
    /// Of the device pool: on the card. Of pinned memory: at the same address for the card and for the host. Of pageable
    /// memory: the host's, which the driver copies from and to by itself.
    address: u64,
    bytes: u64,
    /// Of the compute queue: when the memory came to be.
    born: Moment,
    /// Of the copy queue: when it used the memory last.
    copied: Moment,
}

/// All buffers of a device. Dropped before its context.
pub(super) struct Memory {
    pool: sys::CUmemoryPool,
    buffers: HashMap<Buffer, Allocation>,
    next: u32,
    /// Host memory that was freed, but that queues may still use: to give it back to the system waits for the device,
    /// which is left to moments that wait for it anyway.
    retired: Vec<u64>,
    /// By address: pageable memory, until nothing can use it any more.
    pageable: HashMap<u64, Mapping>,
    /// By address: host memory of which parts are or were lent. What still is stays where it is.
    lent: HashMap<u64, Arc<()>>,
    /// Of buffers that are addresses with memory behind some pages.
    reservations: HashMap<Buffer, Reservation>,
    witness: Option<ExternalCounter>,
}

/// What the driver counted when the witness began, and since.
#[derive(Clone, Copy)]
struct ExternalCounter {
    /// What a pool reserves at a time. Drivers differ, and none says it.
    step: u64,
    free: u64,
    /// At the most, what was taken of the card besides the pool's memory.
    besides: u64,
}

impl Memory {
    /// In the current context.
    pub(super) fn new(context: &Context) -> Result<Memory, Failed> {
        let pool = create_pool(context)?;
        let (buffers, pageable, lent) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (retired, reservations) = (Vec::new(), HashMap::new());
        let memory = Memory { pool, buffers, next: 0, retired, pageable, lent, reservations, witness: None };
        // What is freed stays in the pool for the next request: mapping it anew in every step would take longer than
        // the step.
        set(pool, Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
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
        let born = if pool == Pool::Device { queues.order.happens(Queue::Compute) } else { 0 };
        Ok(self.add(Allocation { pool, address, bytes, born, copied: 0 }))
    }

    fn allocate_pageable(&mut self, bytes: u64) -> Result<Buffer, DeviceError> {
        let mapping = Mapping::new(Pool::Host, bytes)?;
        let address = mapping.address(0) as u64;
        self.pageable.insert(address, mapping);
        Ok(self.add(Allocation { pool: Pool::Host, address, bytes, born: 0, copied: 0 }))
    }

    /// Addresses on the card, in the current context.
    pub(super) fn reserve(&mut self, bytes: u64, context: &Context) -> Result<Buffer, DeviceError> {
        let reservation = Reservation::new(context, bytes)?;
        let address = reservation.address();
        let buffer = self.add(Allocation { pool: Pool::Device, address, bytes, born: 0, copied: 0 });
        self.reservations.insert(buffer, reservation);
        Ok(buffer)
    }

    /// Puts memory behind a part of what was reserved.
    pub(super) fn commit(&mut self, part: Region) -> Result<(), DeviceError> {
        let pages = part.offset..part.offset + part.bytes;
        self.reservation(part)?.commit(pages).map_err(|failed| match failed.is_out_of_memory() {
            true => DeviceError::OutOfMemory { pool: Pool::Device, bytes: part.bytes },
            false => failed.into(),
        })
    }

    /// Gives back the memory behind a part. Both queues are idle.
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

    /// Gives a buffer back once the queued work that uses it is done: of one that was reserved, once both queues are idle.
    pub(super) fn free(&mut self, buffer: Buffer, queues: &mut Queues) -> Result<(), DeviceError> {
        let allocation = *self.buffers.get(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        match allocation.pool {
            Pool::Device if self.reservations.remove(&buffer).is_some() => {}
            Pool::Host | Pool::Pinned => self.retired.push(allocation.address),
            Pool::Device => {
                queues.follow(Queue::Compute, allocation.copied)?;
                let stream = queues.stream(Queue::Compute);
                // SAFETY: allocated once, freed once; the stream is behind all that uses the memory.
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

    /// The address of a region, and the pool that it lies in.
    ///
    /// # Errors
    /// It does not lie within a buffer.
    pub(super) fn find(&self, region: Region) -> Result<(u64, Pool), DeviceError> {
        let Region { buffer, offset, bytes } = region;
        let allocation = self.buffers.get(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        let size = allocation.bytes;
        if offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(DeviceError::OutOfBounds { buffer, offset, bytes, size });
        }
        Ok((allocation.address + offset, allocation.pool))
    }

    /// Lends a region of the host's memory.
    ///
    /// # Errors
    /// It is none, or does not lie within a buffer.
    pub(super) fn lend(&mut self, region: Region) -> Result<Lent, DeviceError> {
        let (address, pool) = self.find(region)?;
        if pool == Pool::Device {
            return Err(DeviceError::NotOfHost { buffer: region.buffer });
        }
        let keep = self.lent.entry(address - region.offset).or_default().clone();
        // SAFETY: it lies within an allocation of pages that the host has; the rest is what who asks for it promises.
        #[allow(unsafe_code)]
        Ok(unsafe { Lent::new(address as *mut u8, region.bytes, keep) })
    }

    /// Whether somebody holds a part of the memory at an address.
    fn is_lent(&self, address: u64) -> bool {
        self.lent.get(&address).is_some_and(|keep| Arc::strong_count(keep) > 1)
    }

    /// Says that the copy queue is about to use a buffer: it waits until the memory is there.
    pub(super) fn copies(&mut self, buffer: Buffer, queues: &mut Queues) -> Result<(), DeviceError> {
        let allocation = self.buffers.get_mut(&buffer).ok_or(DeviceError::NoSuchBuffer { buffer })?;
        queues.follow(Queue::Copy, allocation.born)?;
        allocation.copied = queues.order.happens(Queue::Copy);
        Ok(())
    }

    /// Gives host memory back that was freed. Both queues are idle.
    pub(super) fn release_retired(&mut self) -> Result<(), Failed> {
        while let Some(index) = self.retired.iter().position(|&address| !self.is_lent(address)) {
            let address = self.retired.swap_remove(index);
            self.lent.remove(&address);
            if self.pageable.remove(&address).is_some() {
                continue;
            }
            // SAFETY: allocated once, freed once; no queue uses it any more.
            check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address as *mut c_void) })?;
        }
        Ok(())
    }

    /// Gives the system back what the pool keeps of freed memory. Both queues are idle.
    pub(super) fn trim(&mut self) -> Result<(), Failed> {
        // SAFETY: the pool lives.
        check("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(self.pool, 0) })
    }

    /// From now on, the driver's counts are judged by what they are now. Both queues are idle.
    pub(super) fn begin_witness(&mut self, context: &Context, queues: &Queues) -> Result<(), Failed> {
        let step = reserved_at_a_time(context, queues)?;
        self.trim()?;
        // Any other value than 0, which begins anew, is refused.
        set(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        let free =
            context.free_and_total()?.0 + get(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        self.witness = Some(ExternalCounter { step, free, besides: 0 });
        Ok(())
    }

    /// Looks at what the driver counts now.
    pub(super) fn sample(&mut self, context: &Context) -> Result<(), Failed> {
        let Some(witness) = self.witness else { return Ok(()) };
        let reserved = get(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let taken = witness.free.saturating_sub(context.free_and_total()?.0);
        let besides = witness.besides.max(taken.saturating_sub(reserved));
        self.witness = Some(ExternalCounter { besides, ..witness });
        Ok(())
    }

    /// What the pool reserved at the most, by its own high-water mark, and what was taken of the card besides, at the
    /// moments when that was looked at. `None` before the witness began.
    pub(super) fn reading(&mut self, context: &Context) -> Result<Option<ExternalReading>, Failed> {
        self.sample(context)?;
        let Some(ExternalCounter { step, besides, .. }) = self.witness else { return Ok(None) };
        let (free, total) = context.free_and_total()?;
        let reserved = get(self.pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?;
        Ok(Some(ExternalReading { taken: total - free, peak: reserved + besides, step }))
    }
}

/// A pool on the card of the current context.
fn create_pool(context: &Context) -> Result<sys::CUmemoryPool, Failed> {
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

/// What a pool reserves for its first byte. A pool of its own shows it: another may have room left.
fn reserved_at_a_time(context: &Context, queues: &Queues) -> Result<u64, Failed> {
    let pool = create_pool(context)?;
    let reserved = allocate_from(pool, 1, queues).and_then(|address| {
        let reserved = get(pool, Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        // SAFETY: allocated once, freed once, never used.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })?;
        reserved
    });
    // SAFETY: created once, destroyed once.
    check("cuMemPoolDestroy", unsafe { sys::cuMemPoolDestroy(pool) })?;
    reserved
}

fn allocate_from(pool: sys::CUmemoryPool, size: usize, queues: &Queues) -> Result<u64, Failed> {
    let (mut address, stream) = (0, queues.stream(Queue::Compute));
    // SAFETY: pool and stream live.
    let status = unsafe { sys::cuMemAllocFromPoolAsync(&mut address, size, pool, stream) };
    check("cuMemAllocFromPoolAsync", status)?;
    Ok(address)
}

fn get(pool: sys::CUmemoryPool, attribute: Attribute) -> Result<u64, Failed> {
    let mut value: u64 = 0;
    let pointer: *mut u64 = &mut value;
    // SAFETY: the pool lives; the attributes that are asked for are 64 bits wide.
    let status = unsafe { sys::cuMemPoolGetAttribute(pool, attribute, pointer.cast()) };
    check("cuMemPoolGetAttribute", status)?;
    Ok(value)
}

fn set(pool: sys::CUmemoryPool, attribute: Attribute, mut value: u64) -> Result<(), Failed> {
    let pointer: *mut u64 = &mut value;
    // SAFETY: the pool lives; the attributes that are set are 64 bits wide.
    let status = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, pointer.cast()) };
    check("cuMemPoolSetAttribute", status)
}

fn allocate_pinned(size: usize) -> Result<u64, Failed> {
    let mut address = std::ptr::null_mut();
    // Not write-combined, which would be slow to read back.
    // SAFETY: a context is current.
    check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, size, 0) })?;
    Ok(address as u64)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What cannot be freed is a lost context's, which frees all of it.
        let _ = self.release_retired();
        for buffer in self.reservations.keys() {
            self.buffers.remove(buffer);
        }
        self.reservations.clear();
        let kept: Vec<u64> = self.lent.keys().copied().filter(|&address| self.is_lent(address)).collect();
        for address in &kept {
            // Rather than pull it away from under who fills it.
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
                    // Which goes with its mapping.
                    Pool::Host => continue,
                }
            };
        }
        // SAFETY: created once, destroyed once.
        let _ = unsafe { sys::cuMemPoolDestroy(self.pool) };
    }
}
