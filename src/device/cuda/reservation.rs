//! Reserved card addresses whose pages are committed separately.

use std::collections::BTreeSet;
use std::ops::Range;

use super::calls::driver as sys;
use super::driver::{Context, check};
use super::errors::CallError;

/// Page size: the driver's allocation granularity.
pub(super) const PAGE: u64 = 2 << 20;

/// A range of addresses. Dropping it frees its committed pages.
pub(super) struct Reservation {
    address: u64,
    bytes: u64,
    device: i32,
    /// Offsets of the committed pages.
    pages: BTreeSet<u64>,
}

impl Reservation {
    /// Reserves addresses on the card of the current context, without memory.
    pub(super) fn new(context: &Context, bytes: u64) -> Result<Reservation, CallError> {
        let bytes = bytes.next_multiple_of(PAGE);
        let mut address = 0;
        // SAFETY: a context is current; the driver chooses the addresses.
        let status = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
        check("cuMemAddressReserve", status)?;
        Ok(Reservation { address, bytes, device: context.device, pages: BTreeSet::new() })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Maps memory to uncommitted whole pages.
    pub(super) fn commit(&mut self, part: Range<u64>) -> Result<(), CallError> {
        let mut pages = part.clone().step_by(PAGE as usize);
        if let Err(failed) = pages.try_for_each(|page| self.commit_page(page)) {
            self.decommit(part)?;
            return Err(failed);
        }
        let access = sys::CUmemAccessDesc {
            location: location(self.device),
            flags: sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let (address, bytes) = (self.address + part.start, (part.end - part.start) as usize);
        // SAFETY: the part is mapped on the device that receives access.
        check("cuMemSetAccess", unsafe { sys::cuMemSetAccess(address, bytes, &access, 1) })
    }

    fn commit_page(&mut self, page: u64) -> Result<(), CallError> {
        let properties = sys::CUmemAllocationProp {
            type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: location(self.device),
            win32HandleMetaData: std::ptr::null_mut(),
            allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
                compressionType: 0,
                gpuDirectRDMACapable: 0,
                usage: 0,
                reserved: [0; 4],
            },
        };
        let mut memory = 0;
        // SAFETY: the properties describe memory on the device.
        let status = unsafe { sys::cuMemCreate(&mut memory, PAGE as usize, &properties, 0) };
        check("cuMemCreate", status)?;
        // SAFETY: the page belongs to the reservation and is uncommitted.
        let mapped = unsafe { sys::cuMemMap(self.address + page, PAGE as usize, 0, memory, 0) };
        // SAFETY: created once, released once; the mapping keeps the memory alive.
        let released = unsafe { sys::cuMemRelease(memory) };
        check("cuMemMap", mapped)?;
        self.pages.insert(page);
        check("cuMemRelease", released)
    }

    /// Unmaps the memory of whole pages. No queue uses it.
    pub(super) fn decommit(&mut self, part: Range<u64>) -> Result<(), CallError> {
        let pages: Vec<u64> = self.pages.range(part).copied().collect();
        for page in pages {
            // SAFETY: mapped once, unmapped once; the caller guarantees that no queue uses the page.
            check("cuMemUnmap", unsafe { sys::cuMemUnmap(self.address + page, PAGE as usize) })?;
            self.pages.remove(&page);
        }
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Unmapping fails only in a lost context, which has already freed everything.
        let _ = self.decommit(0..self.bytes);
        // SAFETY: reserved once, freed once; no page is mapped.
        let _ = unsafe { sys::cuMemAddressFree(self.address, self.bytes as usize) };
    }
}

fn location(device: i32) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}
