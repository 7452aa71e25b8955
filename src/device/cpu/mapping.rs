//! Anonymous memory mappings of whole pages.

use std::ptr;

use libc::{
    ENOMEM, MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_POPULATE, MAP_PRIVATE, PROT_NONE,
    PROT_READ, PROT_WRITE,
};

use crate::{DeviceError, Pool};

/// An anonymous mapping. All pages are resident from the start, except in a reservation, whose pages are absent until
/// they are committed.
pub(crate) struct Mapping {
    /// Queues access parts of it. References to the memory exist only for lent regions.
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the mapping, and the base is valid while the mapping lives. The program's verifier has
// ordered the queues' accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` creates no reference to the memory, except for lent regions, each with one holder.
unsafe impl Sync for Mapping {}

const RESIDENT: (i32, i32) = (PROT_READ | PROT_WRITE, MAP_POPULATE);
const ABSENT: (i32, i32) = (PROT_NONE, MAP_NORESERVE);

impl Mapping {
    /// # Errors
    /// `OutOfMemory`, or `Lost` if the system cannot map memory for another reason.
    pub(crate) fn new(pool: Pool, bytes: u64) -> Result<Mapping, DeviceError> {
        Mapping::map_anywhere(pool, bytes, RESIDENT)
    }

    /// Reserves addresses without memory.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn reserve(pool: Pool, bytes: u64) -> Result<Mapping, DeviceError> {
        Mapping::map_anywhere(pool, bytes, ABSENT)
    }

    fn map_anywhere(pool: Pool, bytes: u64, residency: (i32, i32)) -> Result<Mapping, DeviceError> {
        let size = bytes.max(1) as usize;
        // SAFETY: the system chooses unused addresses.
        let base = unsafe { map(ptr::null_mut(), size, residency, 0) };
        base.map(|base| Mapping { base, bytes: size }).map_err(|error| map_error(&error, pool, bytes))
    }

    /// Makes whole pages of a reservation resident, filled with zeros.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn commit(&self, pool: Pool, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.remap(offset, bytes, RESIDENT).map_err(|error| map_error(&error, pool, bytes))
    }

    /// Returns whole pages of a reservation to the system. Nothing accesses them.
    ///
    /// # Errors
    /// As for `new`.
    pub(super) fn decommit(&self, pool: Pool, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.remap(offset, bytes, ABSENT).map_err(|error| map_error(&error, pool, bytes))
    }

    fn remap(&self, offset: u64, bytes: u64, residency: (i32, i32)) -> std::io::Result<()> {
        assert!(offset + bytes <= self.bytes());
        // SAFETY: the pages belong to the mapping, and their contents are no longer needed.
        unsafe { map(self.address(offset), bytes as usize, residency, MAP_FIXED) }.map(drop)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Panics beyond the end: callers have checked their regions.
    pub(crate) fn address(&self, offset: u64) -> *mut u8 {
        assert!(offset <= self.bytes());
        // SAFETY: the offset lies within the mapping or at its end.
        unsafe { self.base.add(offset as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once; all users keep the mapping alive.
        let unmapped = unsafe { libc::munmap(self.base.cast(), self.bytes) };
        debug_assert_eq!(unmapped, 0, "the mapping consists of whole pages");
    }
}

/// # Safety
/// If `fixed` is `MAP_FIXED`, the caller owns the pages that are replaced.
unsafe fn map(
    at: *mut u8,
    bytes: usize,
    (protection, flags): (i32, i32),
    fixed: i32,
) -> std::io::Result<*mut u8> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | flags | fixed;
    // SAFETY: guaranteed by the caller.
    match unsafe { libc::mmap(at.cast(), bytes, protection, flags, -1, 0) } {
        MAP_FAILED => Err(std::io::Error::last_os_error()),
        base => Ok(base.cast()),
    }
}

fn map_error(error: &std::io::Error, pool: Pool, bytes: u64) -> DeviceError {
    match error.raw_os_error() {
        Some(ENOMEM) => DeviceError::OutOfMemory { pool, bytes },
        _ => DeviceError::Lost(format!("the system cannot map memory: {error}")),
    }
}
